"""An MTP head that learns from the model whose last hidden state it reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shared.errors import ConfigError
from worker.engine.models.layer_config import MtpLayout
from worker.engine.training.linked_layer import (
    NUM_LINKS,
    Kept,
    LinkedLayer,
    chain_loss,
    layer_shape,
    new_linear,
    share_of,
)
from worker.engine.training.student import Batch, Teacher

FILE = "mtp.safetensors"
INDEX = "model.safetensors.index.json"


class MtpStudent:
    """A `Student`. It begins as the teacher's last layer, and guesses with its embeddings and head.

    It is saved as DeepSeek has it: behind the last layer, in a copy of the teacher's checkpoint.
    """

    def __init__(self, teacher: Teacher) -> None:
        """Raises ConfigError."""
        config = teacher.config
        rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
        if config.model_type != "llama" or rope.get("rope_type", "default") != "default":
            raise ConfigError(
                f"kind=mtp is not possible with model_type={config.model_type!r}, "
                f"rope_parameters={rope!r}: only Llama, without other ropes, learns one"
            )
        if config.attention_bias or config.mlp_bias:
            raise ConfigError("kind=mtp is not possible with attention_bias or mlp_bias")
        self._teacher = teacher
        self._embeddings = teacher.model.get_input_embeddings().weight.detach()
        self._head = teacher.model.get_output_embeddings().weight.detach()
        self.module = _Head(config)
        self.module.load_state_dict(teacher.model.model.layers[-1].state_dict(), strict=False)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        """The share is of the first guess."""
        with torch.no_grad():
            hidden = self._teacher.model.model(batch.input_ids).last_hidden_state
            wanted = functional.linear(hidden, self._head)
            embeddings = functional.embedding(batch.input_ids, self._embeddings)
        made = self.module(embeddings, hidden, NUM_LINKS)
        found = [functional.linear(each, self._head) for each in made]
        is_right = (found[0].argmax(-1) == wanted[:, 1:].argmax(-1))[batch.counts[:, 1:]]
        return chain_loss(found, wanted.log_softmax(-1), batch.counts), share_of(is_right)

    def save(self, out: Path) -> str:
        from safetensors import safe_open
        from safetensors.torch import save_file

        path, dtype = self._teacher.path, self._teacher.dtype
        shutil.copytree(path, out, dirs_exist_ok=True)
        prefix = MtpLayout.behind(self._teacher.config.num_hidden_layers).layer
        state = self.module.state_dict()
        tensors = {f"{prefix}{name}": each.to(dtype) for name, each in state.items()}
        save_file(tensors, out / FILE, {"format": "pt"})
        index = out / INDEX
        if index.exists():
            values = json.loads(index.read_text())
        else:
            with safe_open(out / "model.safetensors", framework="pt") as file:
                values = {"weight_map": dict.fromkeys(file.keys(), "model.safetensors")}
        values["weight_map"] |= dict.fromkeys(tensors, FILE)
        index.write_text(json.dumps(values, indent=2) + "\n")
        config = out / "config.json"
        values = json.loads(config.read_text()) | {"num_nextn_predict_layers": 1}
        config.write_text(json.dumps(values, indent=2) + "\n")
        return f"{out} --speculate mtp"


class _Head(LinkedLayer):
    """The head, whose tensors have the names that DeepSeek has published.

    It begins with the teacher's hidden state as it is, in which the token behind is not known: an
    embedding's part of `eh_proj` is small at first.
    """

    def __init__(self, config: Any) -> None:
        shape, size = layer_shape(config, config.rms_norm_eps), config.hidden_size
        super().__init__(shape, size)
        self.enorm, self.hnorm = (nn.RMSNorm(size, config.rms_norm_eps) for _ in range(2))
        self.eh_proj = new_linear(2 * size, size)
        self.shared_head = nn.ModuleDict({"norm": nn.RMSNorm(size, config.rms_norm_eps)})
        with torch.no_grad():
            self.eh_proj.weight[:, -size:] += torch.eye(size)

    def forward(
        self, embeddings: torch.Tensor, hidden: torch.Tensor, num_links: int
    ) -> list[torch.Tensor]:
        """[num_samples, len, hidden_size] each. Gives what comes before the head, [num_samples,
        len - 1 - link, hidden_size] of each link: at t, of the token at t + 2 + link.
        """
        kept: Kept = []
        found: list[torch.Tensor] = []
        for link in range(min(num_links, embeddings.shape[1] - 1)):
            behind = embeddings[:, 1 + link :]
            parts = [self.enorm(behind), self.hnorm(hidden[:, : behind.shape[1]])]
            joined = self.eh_proj(torch.cat(parts, dim=-1))
            made = self.run(self.input_layernorm(joined), joined, kept)
            hidden = self.shared_head["norm"](made)
            found.append(hidden)
        return found

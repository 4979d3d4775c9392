"""An EAGLE-3 head that learns from the model whose streams it reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shared.errors import ConfigError
from worker.engine.models.eagle_head import EAGLE_ARCHITECTURE, NUM_STREAMS, STREAM_LAYERS
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

COVERED_SHARE = 0.998  # of the text that it learns from: the tokens that it may guess


class EagleStudent:
    """A `Student`. For each place it guesses several tokens, one behind the other, as when it is
    served: the first from the teacher's streams, the others from what it has made itself.
    """

    def __init__(self, teacher: Teacher, texts: Sequence[Sequence[int]]) -> None:
        """Raises ConfigError."""
        self._teacher = teacher
        self._layers = _stream_layers(teacher.config.num_hidden_layers)
        self._token_ids = _covering(texts)  # [draft_vocab_size] int64
        self._embeddings = teacher.model.get_input_embeddings().weight.detach()
        self.module = _Head(teacher.config, len(self._token_ids))
        with torch.no_grad():
            size = teacher.config.hidden_size
            self.module.fc.weight[:, -size:] += torch.eye(size)
            head = teacher.model.get_output_embeddings().weight
            self.module.lm_head.weight.copy_(head[self._token_ids])

    def loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        """The share is of the first guess."""
        with torch.no_grad():
            told = self._teacher.model(batch.input_ids, output_hidden_states=True)
            streams = torch.cat([told.hidden_states[each] for each in self._layers], dim=-1)
            embeddings = functional.embedding(batch.input_ids, self._embeddings)
            wanted = told.logits[..., self._token_ids].log_softmax(-1)
            likeliest = told.logits.argmax(-1)
        found = self.module(embeddings, streams, NUM_LINKS)
        chosen = self._token_ids[found[0].argmax(-1)]
        is_right = (chosen == likeliest[:, 1:])[batch.counts[:, 1:]]
        return chain_loss(found, wanted, batch.counts), share_of(is_right)

    def save(self, out: Path) -> str:
        from safetensors.torch import save_file

        config, dtype = self._teacher.config, self._teacher.dtype
        out.mkdir(parents=True, exist_ok=True)
        num_drafted, is_drafted = len(self._token_ids), torch.zeros(config.vocab_size)
        is_drafted[self._token_ids] = 1
        tensors = {name: each.to(dtype) for name, each in self.module.state_dict().items()}
        tensors["d2t"] = self._token_ids - torch.arange(num_drafted)
        tensors["t2d"] = is_drafted.bool()
        save_file(tensors, out / "model.safetensors", {"format": "pt"})
        values = self.module.shape | {
            "architectures": [EAGLE_ARCHITECTURE],
            "model_type": "llama",
            "vocab_size": config.vocab_size,
            "draft_vocab_size": num_drafted,
            "max_position_embeddings": config.max_position_embeddings,
            "tie_word_embeddings": False,
            "torch_dtype": str(dtype).removeprefix("torch."),
            STREAM_LAYERS: [*self._layers],
            "eagle_config": {STREAM_LAYERS: [each - 1 for each in self._layers]},
        }
        (out / "config.json").write_text(json.dumps(values, indent=2) + "\n")
        return f"{self._teacher.path} --draft-model {out}"


class _Layer(LinkedLayer):
    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__(shape, 2 * shape["hidden_size"])
        self.hidden_norm = nn.RMSNorm(shape["hidden_size"], shape["rms_norm_eps"])

    def forward(self, embeddings: torch.Tensor, given: torch.Tensor, kept: Kept) -> torch.Tensor:
        """[num_samples, len, hidden_size] each -> the same."""
        x = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(given)], dim=-1)
        return self.run(x, given, kept)


class _Head(nn.Module):
    """The head, whose tensors have the names of published ones."""

    def __init__(self, config: Any, num_outputs: int) -> None:
        super().__init__()
        size, self.shape = config.hidden_size, layer_shape(config, 1e-6)
        self.fc = new_linear(NUM_STREAMS * size, size)
        self.midlayer = _Layer(self.shape)
        self.norm = nn.RMSNorm(size, 1e-6)
        self.lm_head = new_linear(size, num_outputs)

    def forward(
        self, embeddings: torch.Tensor, streams: torch.Tensor, num_links: int
    ) -> list[torch.Tensor]:
        """[num_samples, len, hidden_size] and three times as wide. Gives logits [num_samples, len -
        1 - link, num_outputs] of each link: at t, of the token at t + 2 + link.
        """
        given, found = self.fc(streams), list[torch.Tensor]()
        kept: Kept = []
        for link in range(min(num_links, embeddings.shape[1] - 1)):
            behind = embeddings[:, 1 + link :]
            given = self.midlayer(behind, given[:, : behind.shape[1]], kept)
            found.append(self.lm_head(self.norm(given)))
        return found


def _stream_layers(num_layers: int) -> tuple[int, ...]:
    """The published ones; of a model with few layers others. Raises ConfigError."""
    if num_layers < NUM_STREAMS:
        raise ConfigError(
            f"kind=eagle3 is not possible: it reads the streams of {NUM_STREAMS} layers, and the "
            f"model has {num_layers}"
        )
    if num_layers > 2 * NUM_STREAMS:
        return (2, num_layers // 2, num_layers - 3)
    return (int(num_layers > NUM_STREAMS), num_layers // 2, num_layers - 1)


def _covering(texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """The most frequent tokens, in their order, that make up most of the texts."""
    counts = Counter(chain.from_iterable(texts))
    num_left, token_ids = COVERED_SHARE * counts.total(), list[int]()
    for token_id, count in counts.most_common():
        if num_left <= 0:
            break
        token_ids.append(token_id)
        num_left -= count
    return torch.tensor(sorted(token_ids))

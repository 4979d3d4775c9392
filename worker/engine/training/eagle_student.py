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
from worker.engine.models.rotary import rotate
from worker.engine.training.student import Batch, Teacher

COVERED_SHARE = 0.998  # of the text that it learns from: the tokens that it may guess
NUM_LINKS = 4  # guesses behind each other, of which it learns
LINK_WEIGHT = 0.8  # of a guess, beside the one before it


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
        losses, share = torch.zeros(()), 0.0
        for link, found in enumerate(self.module(embeddings, streams, NUM_LINKS)):
            counts = batch.counts[:, 1 + link :]  # of a pair's token, and behind guesses
            if not counts.any():
                break
            loss = functional.kl_div(
                found[counts].log_softmax(-1),
                wanted[:, 1 + link :][counts],
                log_target=True,
                reduction="batchmean",
            )
            losses = losses + LINK_WEIGHT**link * loss
            if link == 0:
                chosen = self._token_ids[found[counts].argmax(-1)]
                share = float((chosen == likeliest[:, 1:][counts]).float().mean())
        return losses, share

    def save(self, out: Path) -> None:
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


class _Head(nn.Module):
    """With the names of its tensors as they are published."""

    def __init__(self, config: Any, num_outputs: int) -> None:
        super().__init__()
        size, num_heads = config.hidden_size, config.num_attention_heads
        rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
        self.shape = {
            "hidden_size": size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": num_heads,
            "num_key_value_heads": getattr(config, "num_key_value_heads", None) or num_heads,
            "head_dim": getattr(config, "head_dim", None) or size // num_heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": rope.get("rope_theta", 10000.0),
        }
        self.fc = _linear(NUM_STREAMS * size, size)
        self.midlayer = _Layer(self.shape)
        self.norm = nn.RMSNorm(size, 1e-6)
        self.lm_head = _linear(size, num_outputs)

    def forward(
        self, embeddings: torch.Tensor, streams: torch.Tensor, num_links: int
    ) -> list[torch.Tensor]:
        """[num_samples, len, hidden_size] and three times as wide. Gives logits [num_samples, len -
        1 - link, num_outputs] of each link: at t, of the token at t + 2 + link.
        """
        given, found = self.fc(streams), list[torch.Tensor]()
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for link in range(min(num_links, embeddings.shape[1] - 1)):
            behind = embeddings[:, 1 + link :]
            given = self.midlayer(behind, given[:, : behind.shape[1]], kept)
            found.append(self.lm_head(self.norm(given)))
        return found


class _Layer(nn.Module):
    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        size, inner_size = shape["hidden_size"], shape["intermediate_size"]
        self.head_dim, self.theta = shape["head_dim"], shape["rope_theta"]
        attention_size = shape["num_attention_heads"] * self.head_dim
        kv_size = shape["num_key_value_heads"] * self.head_dim
        self.input_layernorm = nn.RMSNorm(size, 1e-6)
        self.hidden_norm = nn.RMSNorm(size, 1e-6)
        self.post_attention_layernorm = nn.RMSNorm(size, 1e-6)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": _linear(2 * size, attention_size),
                "k_proj": _linear(2 * size, kv_size),
                "v_proj": _linear(2 * size, kv_size),
                "o_proj": _linear(attention_size, size),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": _linear(size, inner_size),
                "up_proj": _linear(size, inner_size),
                "down_proj": _linear(inner_size, size),
            }
        )

    def forward(
        self,
        embeddings: torch.Tensor,
        given: torch.Tensor,
        kept: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """[num_samples, len, hidden_size] each -> the same. `kept`: keys and values of the links
        before this one, to which its own are added.
        """
        x = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(given)], dim=-1)
        given = given + self.self_attn["o_proj"](self._attend(x, kept))
        x = self.post_attention_layernorm(given)
        gated = functional.silu(self.mlp["gate_proj"](x)) * self.mlp["up_proj"](x)
        made: torch.Tensor = given + self.mlp["down_proj"](gated)
        return made

    def _attend(
        self, x: torch.Tensor, kept: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """To what the streams were given to, up to a place; of later links to the place's own."""
        size = x.shape[1]
        queries, keys, values = (self._heads(x, f"{name}_proj") for name in "qkv")
        cosines, sines = self._angles(len(kept), size)
        queries, keys = rotate(queries, cosines, sines), rotate(keys, cosines, sines)
        num_shared = queries.shape[2] // keys.shape[2]
        kept.append((keys, values))
        keys, values = (
            torch.stack([each[:, :size].repeat_interleave(num_shared, 2) for each in parts], 1)
            for parts in zip(*kept, strict=True)
        )  # [num_samples, num_links, size, num_heads, head_dim]
        first = torch.einsum("bqhd,bkhd->bhqk", queries, keys[:, 0])
        is_later = torch.ones(size, size, dtype=torch.bool).triu(1)
        first = first.masked_fill(is_later, -torch.inf)
        own = torch.einsum("bqhd,blqhd->bhql", queries, keys[:, 1:])
        weights = (torch.cat([first, own], dim=-1) * self.head_dim**-0.5).softmax(-1)
        attended = torch.einsum("bhqk,bkhd->bqhd", weights[..., :size], values[:, 0])
        attended += torch.einsum("bhql,blqhd->bqhd", weights[..., size:], values[:, 1:])
        return attended.flatten(2)

    def _heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        heads: torch.Tensor = self.self_attn[name](x).unflatten(-1, (-1, self.head_dim))
        return heads

    def _angles(self, start: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of positions from `start`: [size, 1, head_dim / 2] cosines and sines."""
        frequencies = self.theta ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = torch.arange(start, start + size)[:, None, None] * frequencies
        return angles.cos(), angles.sin()


def _linear(in_features: int, out_features: int) -> nn.Linear:
    linear = nn.Linear(in_features, out_features, bias=False)
    nn.init.normal_(linear.weight, std=0.5 * in_features**-0.5)
    return linear


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

"""A decoder cut into stages: which layers each has, and how it reads their weights."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain, pairwise

import torch

from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.loader import WeightReader
from worker.engine.models.model_config import ModelStage
from worker.engine.models.renaming_reader import renamed

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
# Of its work if each token had use for it, which those of a prompt have not. Half is right where
# prompts are a few times as long as outputs, and for what the last stage plans.
_HEAD_SHARE = 0.5
_BEFORE, _BEHIND = ("embed_tokens", "embed_positions"), ("norm", "lm_head", "score")


def stages_of(config: DecoderConfig, num_stages: int) -> list[ModelStage]:
    """The stages in their order, the longest as short as possible: behind the last layer come the
    head, and what chooses. Raises ConfigError.
    """
    beyond = beyond_stages(config)
    if beyond is not None:
        raise ConfigError(
            f"pp={num_stages} is not possible with {config.architecture}: {beyond} "
            "cannot be cut into stages yet; pp=1 runs it in one"
        )
    num_layers, num_before = config.num_layers, num_stages - 1
    if num_stages > num_layers:
        raise ConfigError(f"pp={num_stages} is more than the {num_layers} layers of the model")
    layer_size = config.num_projection_values / num_layers
    head_size = _HEAD_SHARE * config.num_outputs * config.hidden_size

    def longest(num_last: int) -> float:
        each = -(-(num_layers - num_last) // num_before)
        return max(each * layer_size, num_last * layer_size + head_size)

    num_last = min(range(1, num_layers - num_before + 1), key=longest)
    shares = [(num_layers - num_last + idx) // num_before for idx in range(num_before)]
    ends = [sum(shares[:idx]) for idx in range(num_stages)] + [num_layers]
    return [ModelStage(begin, end, begin == 0, end == num_layers) for begin, end in pairwise(ends)]


def beyond_stages(config: DecoderConfig) -> str | None:
    """The first thing that layers of two stages would have in common."""
    layers = config.attention_layers
    has = {
        "a state beside keys and values": bool(config.recurrent),
        "its blocks that layers share": config.shared_blocks is not None,
        "its inputs of each layer": config.layer_inputs is not None,
        "its keys that several layers see": any(each.kv_layer_id is not None for each in layers),
        "its choice of positions": config.latent is not None and config.latent.indexer is not None,
    }
    return next((name for name, is_so in has.items() if is_so), None)


def of_stage(config: DecoderConfig, stage: ModelStage) -> DecoderConfig:
    """The model that a stage is: its layers count from 0."""
    layers = slice(stage.begin, stage.end)
    ids = [each for each in config.attention_ids[layers] if each is not None]
    attending = slice(ids[0], ids[-1] + 1) if ids else slice(0, 0)
    return replace(
        config,
        num_layers=stage.end - stage.begin,
        stage=stage,
        mlp_sizes=config.mlp_sizes[layers],
        kept_inputs=config.kept_inputs[layers],
        attends=config.attends[layers],
        has_mlp=config.has_mlp[layers],
        experts=config.experts[layers],
        attention_layers=config.attention_layers[attending],
        layer_ropes=config.layer_ropes[attending],
        keys_are_values=config.keys_are_values[attending],
    )


def read_elsewhere(config: DecoderConfig, stage: ModelStage) -> tuple[str, ...]:
    """Parts of the names of tensors that other stages read, as checkpoints write them behind the
    name of the model.
    """
    others = chain(range(stage.begin), range(stage.end, config.num_layers))
    ours = [f"model.layers.{layer_id}." for layer_id in others]
    if not stage.is_first:
        ours += [f"model.{each}." for each in _BEFORE]
    if not stage.is_last:
        ours += [f"model.{each}." for each in _BEHIND]
    stored = [renamed(each, config.stored_names) for each in ours]
    return tuple(f".{each.partition('.')[2]}" for each in (*ours, *stored))


class StageReader:
    """A `WeightReader` of a stage's tensors, by names that count its layers from 0."""

    def __init__(self, stage: ModelStage, reader: WeightReader) -> None:
        self._begin = stage.begin
        self._reader = reader

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self._reader.read(self._whole(name), *shape)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        return self._reader.read_as(dtype, self._whole(name), *shape)

    def has(self, name: str) -> bool:
        return self._reader.has(self._whole(name))

    def _whole(self, name: str) -> str:
        return _LAYER.sub(lambda found: f"model.layers.{int(found[1]) + self._begin}.", name)

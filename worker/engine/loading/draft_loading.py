"""A small model, or a head, that guesses for the one that is served: whether it may."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.stream_pool import StreamPool
from worker.engine.drafting.draft_model import DraftHead
from worker.engine.formats.stored_checkpoint import open_checkpoint
from worker.engine.layers.checked_linears import choose_linears
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.loading.memory_check import BesideModel, weight_bytes
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.eagle_head import (
    EAGLE_ARCHITECTURE,
    UNREAD_TENSORS,
    EagleConfig,
    EagleHead,
    Embeddings,
)
from worker.engine.models.layer_ops import TorchLayerOps
from worker.engine.models.layer_ropes import LayerRopes
from worker.engine.models.loader import CheckpointReader
from worker.engine.models.model_config import ConfigFile, ModelConfig, is_classifier
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.registry import read_model_config
from worker.engine.native.native_choice import may_choose_native
from worker.engine_link.engine_config import EngineConfig

OTHER_HEADS = ("Eagle", "MTP", "NextN", "Medusa", "Speculator")  # in names of architectures


@dataclass(frozen=True, slots=True)
class DraftSetup:
    """Chosen before weights are read."""

    config: EngineConfig  # as if it were to be served
    setup: ModelSetup

    @classmethod
    def read(cls, config: EngineConfig, name: str, target: ModelSetup) -> Self:
        """Raises ConfigError."""
        path = Path(name)
        try:
            model = read_model_config(path, None, on_gpu=False)
        except ConfigError as exc:
            raise ConfigError(f"draft_model={name} is not possible: {exc}") from exc
        _check_kind(name, model)
        check_same_tokenizer(name, path, Path(config.model_path))
        own = replace(
            config,
            model_path=str(path),
            draft_model=None,
            quantization=None,
            kv_dtype="auto",
            cpu_activations="auto",
            packed_weights="off",
            max_context_len=min(target.max_context_len, model.max_context_len),
        )
        # What it says is a guess in any case: nothing is lost by few bits.
        if own.dtype == "auto" and may_choose_native(own, model, torch.bfloat16):
            own = replace(own, dtype="bfloat16")
        return cls(own, ModelSetup.choose(own, model.within(own.max_context_len), is_fast=True))

    @property
    def kv_bytes_per_token(self) -> int:
        return self.setup.config.kv_bytes_per_token(self.setup.dtype)

    @property
    def memory(self) -> BesideModel:
        model, dtype = self.setup.config, self.setup.dtype
        in_codes = may_choose_native(self.config, model, dtype)
        num_weight_bytes = weight_bytes(model, dtype, in_codes=in_codes)
        return BesideModel(num_weight_bytes, self.kv_bytes_per_token)

    def beside(self, num_kv_tokens: int) -> EngineConfig:
        """With as many slots as the large model has."""
        return replace(self.config, num_kv_tokens=num_kv_tokens, kv_memory_bytes=None)


@dataclass(frozen=True, slots=True)
class HeadSetup:
    """The same of an EAGLE-3 head. It is in the dtype of the large model."""

    path: Path
    config: EagleConfig
    target: ModelSetup
    stream_layers: tuple[int, ...]
    page_size: int

    @classmethod
    def read(cls, config: EngineConfig, name: str, target: ModelSetup) -> Self:
        """Raises ConfigError."""
        path, model = Path(name), target.config
        head = EagleConfig.read(path / "config.json")
        if not isinstance(model, DecoderConfig):
            raise ConfigError(
                f"{model.architecture} hands out no streams: transformers computes it"
            )
        for field, value, wanted in (
            ("vocab_size", head.decoder.vocab_size, model.num_outputs),
            ("target_hidden_size", head.target_hidden_size, model.hidden_size),
            ("embedding_scale", 1.0, model.embedding_scale),
        ):
            if value != wanted:
                raise ConfigError(
                    f"{head.path}: {field} is {value}, and {wanted} of {model.architecture}"
                )
        return cls(path, head, target, head.layers_of(model.num_layers), config.page_size)

    @property
    def kv_bytes_per_token(self) -> int:
        """With the streams that are kept for it."""
        stream_bytes = len(self.stream_layers) * self.config.target_hidden_size
        return self.layout.bytes_per_token + stream_bytes * self.target.dtype.itemsize

    @property
    def memory(self) -> BesideModel:
        num_bytes = self.config.num_parameters * self.target.dtype.itemsize
        return BesideModel(num_bytes, self.kv_bytes_per_token)

    def load(self) -> LoadedHead:
        """Raises ConfigError."""
        config, dtype = self.config, self.target.dtype
        ropes = LayerRopes.of(config.decoder, self.target.max_context_len, dtype)
        ops = TorchLayerOps(ropes, config.decoder.attention_layers, choose_linears(dtype))
        with open_checkpoint(self.path) as checkpoint:
            reader = CheckpointReader(checkpoint, dtype, lambda _: None)
            head = EagleHead(config, reader, ops)
            reader.finish(UNREAD_TENSORS)
        hidden_size, size = config.decoder.hidden_size, config.target_hidden_size
        if head.own_embeddings is None and hidden_size != size:
            raise ConfigError(
                f"draft_model={self.path} has no 'embed_tokens.weight', and those of the model "
                f"have {size} values, not hidden_size={hidden_size}"
            )
        return LoadedHead(self, head)

    @property
    def layout(self) -> KVLayout:
        layers = self.config.decoder.attention_layers
        return KVLayout.of(layers, self.target.dtype, self.page_size)


class LoadedHead(NamedTuple):
    """With its weights, before there is a pool to put it beside."""

    setup: HeadSetup
    head: EagleHead

    def make_streams(self, num_slots: int) -> StreamPool:
        setup = self.setup
        size = setup.config.target_hidden_size
        return StreamPool(setup.stream_layers, size, num_slots, setup.target.dtype)

    def beside(self, streams: StreamPool, embeddings: Embeddings, num_pages: int) -> DraftHead:
        """`embeddings`: of the large model, whose pool has so many pages."""
        (setup, head), own = self, self.head.own_embeddings
        num_millions = setup.config.num_parameters / 1e6
        return DraftHead(
            f"{setup.path.name} (an EAGLE-3 head, {num_millions:.1f} million parameters)",
            head,
            KVCachePool(setup.layout, num_pages),
            streams,
            embeddings if own is None else lambda input_ids: own[input_ids],
            setup.target.max_context_len,
            setup.target.config.num_outputs,
        )


def read_draft(config: EngineConfig, target: ModelSetup) -> DraftSetup | HeadSetup | None:
    """None: none is configured. Raises ConfigError for one that cannot guess for `target`."""
    name = config.draft_model
    if name is None:
        return None
    try:
        if _is_head(Path(name)):
            return HeadSetup.read(config, name, target)
    except ConfigError as exc:
        raise ConfigError(f"draft_model={name} is not possible: {exc}") from exc
    return DraftSetup.read(config, name, target)


def _is_head(path: Path) -> bool:
    """Raises ConfigError for one of another kind."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder")
    architectures = ConfigFile.read(path / "config.json").get("architectures", None)
    if architectures == [EAGLE_ARCHITECTURE]:
        return True
    if any(word in str(architectures) for word in OTHER_HEADS):
        raise ConfigError(
            f"{path}/config.json: architectures={architectures!r} is no head of EAGLE-3 "
            f"({EAGLE_ARCHITECTURE})"
        )
    return False


def _check_kind(name: str, model: ModelConfig) -> None:
    """Raises ConfigError."""
    if is_classifier(model.architecture):
        raise ConfigError(f"draft_model={name} makes no tokens: it is {model.architecture}")
    if model.state_layers:
        raise ConfigError(
            f"draft_model={name} is not possible: the state of the recurrent layers of "
            f"{model.architecture} cannot be taken back where a guess is wrong"
        )


def check_same_tokenizer(name: str, path: Path, target: Path) -> None:
    """Raises ConfigError where the same text has other tokens."""
    if not TokenizerBundle.is_in(target):  # of benchmarks and tests: nobody writes text to them
        return
    if _vocabulary(path) != _vocabulary(target):
        raise ConfigError(
            f"draft_model={name} has another tokenizer than the model that it would guess for "
            f"({target}): both need the same tokens and merges"
        )


def _vocabulary(path: Path) -> list[Any] | None:
    """All that decides which tokens a text has; None: nothing is said about it."""
    if not TokenizerBundle.is_in(path):
        return None
    values = json.loads(TokenizerBundle.from_model_dir(path).files["tokenizer.json"])
    added = [(each["id"], each["content"]) for each in values.get("added_tokens", ())]
    model = values["model"]
    return [model.get("vocab"), model.get("merges"), sorted(added)]

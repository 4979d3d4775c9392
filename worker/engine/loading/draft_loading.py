"""A small model, or a head, that guesses for the one that is served: whether it may."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.gguf.gguf_model import holds_gguf
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.model_runner import StreamingForward
from worker.engine.cpu.stream_pool import StreamPool
from worker.engine.drafting.draft_model import DraftHead, Head, Rows
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
)
from worker.engine.models.layer_config import MtpLayout
from worker.engine.models.layer_ops import TorchLayerOps
from worker.engine.models.layer_ropes import LayerRopes
from worker.engine.models.loader import CheckpointReader
from worker.engine.models.model_config import ConfigFile, ModelConfig, is_classifier
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.mtp_head import MtpHead, mtp_layer
from worker.engine.models.registry import read_model_config
from worker.engine.native.native_choice import may_choose_native
from worker.engine.native.native_forward import NativeForward
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
        """The configuration with as many slots as the large model has."""
        return replace(self.config, num_kv_tokens=num_kv_tokens, kv_memory_bytes=None)


@dataclass(frozen=True, slots=True)
class HeadSetup(ABC):
    """The same of a head. It is in the dtype of the large model."""

    path: Path
    target: ModelSetup
    layer: DecoderConfig  # as a model that has no other one
    stream_layers: tuple[int, ...]
    page_size: int

    @property
    def kv_bytes_per_token(self) -> int:
        """The bytes of a token with the streams that are kept for it."""
        stream_bytes = len(self.stream_layers) * self.target.config.hidden_size
        return self.layout.bytes_per_token + stream_bytes * self.target.dtype.itemsize

    @property
    def memory(self) -> BesideModel:
        num_bytes = self.num_parameters * self.target.dtype.itemsize
        return BesideModel(num_bytes, self.kv_bytes_per_token)

    @property
    def layout(self) -> KVLayout:
        """The layout of its keys and values."""
        return KVLayout.of(self.layer.attention_layers, self.target.dtype, self.page_size)

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """Without embeddings, norms and biases."""

    @abstractmethod
    def load(self) -> LoadedHead:
        """Raises ConfigError."""

    def ops(self) -> TorchLayerOps:
        dtype = self.target.dtype
        ropes = LayerRopes.of(self.layer, self.target.max_context_len, dtype)
        return TorchLayerOps(ropes, self.layer.attention_layers, choose_linears(dtype))


@dataclass(frozen=True, slots=True)
class EagleSetup(HeadSetup):
    """The setup of an EAGLE-3 head, in a folder of its own."""

    config: EagleConfig

    @classmethod
    def read(cls, config: EngineConfig, name: str, target: ModelSetup) -> Self:
        """Raises ConfigError."""
        path, model = Path(name), _decoder(target.config)
        head = EagleConfig.read(path / "config.json")
        for field, value, wanted in (
            ("vocab_size", head.decoder.vocab_size, model.num_outputs),
            ("target_hidden_size", head.target_hidden_size, model.hidden_size),
            ("embedding_scale", 1.0, model.embedding_scale),
        ):
            if value != wanted:
                raise ConfigError(
                    f"{head.path}: {field} is {value}, and {wanted} of {model.architecture}"
                )
        stream_layers = head.layers_of(model.num_layers)
        return cls(path, target, head.decoder, stream_layers, config.page_size, head)

    @property
    def num_parameters(self) -> int:
        return self.config.num_parameters

    def load(self) -> LoadedHead:
        with open_checkpoint(self.path) as checkpoint:
            reader = CheckpointReader(checkpoint, self.target.dtype, lambda _: None)
            head = EagleHead(self.config, reader, self.ops())
            reader.finish(UNREAD_TENSORS)
        own, hidden_size = head.own_embeddings, self.layer.hidden_size
        size = self.config.target_hidden_size
        if own is None and hidden_size != size:
            raise ConfigError(
                f"draft_model={self.path} has no 'embed_tokens.weight', and those of the model "
                f"have {size} values, not hidden_size={hidden_size}"
            )
        embeddings = None if own is None else lambda input_ids: own[input_ids]
        name = f"{self.path.name} (an EAGLE-3 head"
        return LoadedHead(self, name, head, embeddings, head.logits)


@dataclass(frozen=True, slots=True)
class MtpSetup(HeadSetup):
    """The setup of an MTP head, which lies in the model's own checkpoint."""

    mtp: MtpLayout

    @classmethod
    def read(cls, config: EngineConfig, target: ModelSetup) -> Self:
        """Raises ConfigError."""
        path, model = Path(config.model_path), _decoder(target.config)
        if config.load_format == "dummy" or holds_gguf(path):
            raise ConfigError(f"only files of safetensors have an MTP head, not {path}")
        if model.mtp is None:
            raise ConfigError(f"no MTP head is known of {model.architecture}")
        with open_checkpoint(path) as checkpoint:
            name = f"{model.mtp.join}.weight"
            if checkpoint.heads.stored_name(name) is None:
                raise ConfigError(f"{path} has no MTP head: there is no tensor {name!r}")
        layer, behind = mtp_layer(model), (model.num_layers,)
        return cls(path, target, layer, behind, config.page_size, model.mtp)

    @property
    def num_parameters(self) -> int:
        return self.layer.num_projection_values + 2 * self.layer.hidden_size**2

    def load(self) -> LoadedHead:
        with open_checkpoint(self.path) as checkpoint:
            reader = CheckpointReader(checkpoint, self.target.dtype, lambda _: None)
            head = MtpHead(self.mtp, self.layer, reader, self.ops())
        return LoadedHead(self, "its own MTP head (", head, None, None)


class LoadedHead(NamedTuple):
    """A head with its weights, before there is a pool to put it beside."""

    setup: HeadSetup
    name: str
    head: Head
    embeddings: Rows | None  # None: they are the large model's
    logits: Rows | None  # None: they come out of the large model's head

    def make_streams(self, num_slots: int) -> StreamPool:
        target = self.setup.target
        return StreamPool(
            self.setup.stream_layers, target.config.hidden_size, num_slots, target.dtype
        )

    def beside(
        self, target: NativeForward | StreamingForward, streams: StreamPool, num_pages: int
    ) -> DraftHead:
        """`target`: the large model, whose pool has so many pages."""
        setup = self.setup
        return DraftHead(
            f"{self.name}{setup.num_parameters / 1e6:.1f} million parameters)",
            self.head,
            KVCachePool(setup.layout, num_pages),
            streams,
            self.embeddings or target.embeddings,
            self.logits or target.logits,
            setup.target.max_context_len,
            setup.target.config.num_outputs,
        )


def read_draft(config: EngineConfig, target: ModelSetup) -> DraftSetup | HeadSetup | None:
    """None: none is configured. Raises ConfigError for one that cannot guess for `target`."""
    name = config.draft_model
    try:
        if config.speculate == "mtp":
            return MtpSetup.read(config, target)
        if name is None:
            return None
        if _is_head(Path(name)):
            return EagleSetup.read(config, name, target)
    except ConfigError as exc:
        raise ConfigError(f"{config.guesses_by} is not possible: {exc}") from exc
    return DraftSetup.read(config, name, target)


def _decoder(model: ModelConfig) -> DecoderConfig:
    """Raises ConfigError where transformers computes it."""
    if not isinstance(model, DecoderConfig):
        raise ConfigError(f"{model.architecture} hands out no streams: transformers computes it")
    if is_classifier(model.architecture):
        raise ConfigError(f"{model.architecture} makes no tokens")
    return model


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

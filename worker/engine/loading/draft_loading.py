"""The small model that guesses for the one that is served: what it is, and whether it may."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from worker.engine.loading.memory_check import BesideModel, weight_bytes
from worker.engine.models.model_config import ModelConfig, is_classifier
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.registry import read_model_config
from worker.engine.native.native_choice import may_choose_native
from worker.engine_link.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class DraftSetup:
    """Chosen before weights are read."""

    config: EngineConfig  # as if it were to be served
    setup: ModelSetup

    @classmethod
    def read(cls, config: EngineConfig, target: ModelSetup) -> Self | None:
        """None: none is configured. Raises ConfigError for one that cannot guess for `target`."""
        if config.draft_model is None:
            return None
        path = Path(config.draft_model)
        try:
            model = read_model_config(path, None, on_gpu=False)
        except ConfigError as exc:
            raise ConfigError(f"draft_model={config.draft_model} is not possible: {exc}") from exc
        _check_kind(config.draft_model, model)
        check_same_tokenizer(config.draft_model, path, Path(config.model_path))
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

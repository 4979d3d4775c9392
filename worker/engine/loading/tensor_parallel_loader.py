"""Models that several GPUs share, each with a process of its own."""

from __future__ import annotations

import dataclasses

from shared.errors import ConfigError
from worker.engine.cuda.tensor_parallel.followers import Followers
from worker.engine.cuda.tensor_parallel.rank_config import rank_config
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.loading import determinism
from worker.engine.loading.gpu_loader import load_on_gpu
from worker.engine.loading.load_site import LoadSite
from worker.engine.loading.loaded_model import LoadedModel
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.registry import FUSED_ARCHITECTURES


class TensorParallelLoader:
    """The `ModelLoader` of tp above 1: loads the first rank's share, and starts the others."""

    def __init__(self, site: LoadSite) -> None:
        self._site = site

    def suits(self, model: ModelConfig) -> bool:
        return self._site.config.tp > 1

    def load(self, setup: ModelSetup, grammars: GrammarBackend) -> LoadedModel:
        """Raises ConfigError."""
        assert self._site.gpu is not None, "ranks have GPUs, or take the CPU for one"
        determinism.check_on_gpu(self._site.config, setup.config)
        if not isinstance(setup.config, DecoderConfig):
            raise ConfigError(
                f"tp={self._site.config.tp} is not possible with {setup.config.architecture}: only "
                f"models of {', '.join(FUSED_ARCHITECTURES)} are divided; tp=1 runs it on one GPU"
            )
        self._site.progress.enter("start ranks")
        config = rank_config(
            self._site.config, self._site.step, setup.config, setup.dtype, setup.max_context_len
        )
        followers = Followers.start(config, self._site.gpu)
        site = dataclasses.replace(self._site, config=config)
        loaded = load_on_gpu(site, setup, followers.group)
        return LoadedModel(
            loaded.pool,
            lambda req_to_token: loaded.make_runner(req_to_token, grammars, followers),
            _refuse_adapter,
            remark=loaded.remark,
            gpu=loaded.card,
        )


def _refuse_adapter(_: LoraWeights) -> dict[str, LoraProjection]:
    raise ConfigError("LoRA adapters are not possible with tp above 1 yet")

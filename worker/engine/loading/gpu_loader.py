"""Models that run on one GPU, or on several."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NoReturn

from shared.errors import ConfigError
from shared.protocol.role_cards import LOAD_WEIGHTS
from worker.engine.cuda.attention.attention_choice import choose_attention
from worker.engine.cuda.gpu_loading import load_gpu_model
from worker.engine.cuda.gpu_model import GpuModel
from worker.engine.cuda.tensor_parallel.followers import Followers
from worker.engine.cuda.tensor_parallel.rank_config import rank_config
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup
from worker.engine.cuda.tensor_parallel.rank_loras import RankLoras
from worker.engine.cuda.tensor_parallel.rank_part import rank_part
from worker.engine.cuda.trials.kernel_trials import kernel_trials
from worker.engine.device.gpu_device import upload
from worker.engine.device.gpu_memory import memory_for
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.images import ImageEncoder, VisionTower
from worker.engine.loading import determinism, model_limits
from worker.engine.loading.model_loader import LoadedModel, LoadSite
from worker.engine.lora.adapter_pool import MakeProjections
from worker.engine.lora.lora_projection import LoraWeights
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model import Model
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.transformers_model import TransformersModel
from worker.engine.models.vision.tower import load_tower
from worker.engine_link.engine_config import EngineConfig


class GpuLoader:
    """The `ModelLoader` of a machine with a GPU."""

    def __init__(self, site: LoadSite) -> None:
        self._site = site

    def suits(self, model: ModelConfig) -> bool:
        return self._site.gpu is not None

    def load(self, setup: ModelSetup, grammars: GrammarBackend) -> LoadedModel:
        """Raises ConfigError."""
        model_limits.check_on_gpu(self._site.config, setup.config)
        determinism.check_on_gpu(self._site.config, setup.config)
        loaded = load_on_gpu(self._site, setup)
        return LoadedModel(
            loaded.pool,
            lambda tables: loaded.make_runner(tables.all, grammars),
            loaded.lora_projections,
            num_snapshots=loaded.num_snapshots,
            remark="; ".join(
                filter(None, (loaded.remark, _remark_on_states(setup.config, loaded)))
            ),
            no_images=model_limits.no_images_on_gpu(setup.config, self._site.config),
            gpu=loaded.card,
        )


def _remark_on_states(model: ModelConfig, loaded: GpuModel) -> str:
    if loaded.num_snapshots is None:
        return ""
    remark = model_limits.remark_on_states(model, loaded.num_snapshots)
    return f"{remark}; steps that read prompts run without CUDA graphs"


def load_on_gpu(site: LoadSite, setup: ModelSetup, group: RankGroup | None = None) -> GpuModel:
    """The first rank's share of it, where there is a group. Raises ConfigError."""
    config, step, gpu, progress = site.config, site.step, site.gpu, site.progress
    assert gpu is not None, "it is a GPU, or the CPU as several ranks take it"
    part = setup.config
    if group is not None:
        assert isinstance(part, DecoderConfig), "no other kind is divided"
        part = rank_part(config, part, group.rank)
    progress.enter("choose attention kernels")
    with kernel_trials(gpu) as trials:
        attention = choose_attention(
            config, gpu, part.attention_layers, setup.dtype, step, trials.stopwatch, group
        )
        progress.enter(LOAD_WEIGHTS)
        model = load_gpu_model(config, setup, gpu, progress.on_weights, trials.choose_tiles, group)
    eyes = _load_eyes(site, setup, model)
    progress.enter("capture CUDA graphs", 1.0)
    own = dataclasses.replace(setup, config=part)
    return GpuModel(config, step, gpu, model, own, attention, group, eyes)


def _load_eyes(site: LoadSite, setup: ModelSetup, model: Model) -> ImageEncoder | None:
    """The tower on the GPU, or the whole model that has one. None: it takes no images there."""
    sight, tower, gpu, config = setup.config.sight, setup.config.tower, site.gpu, site.config
    assert gpu is not None, "it is a GPU"
    if sight is None or model_limits.no_images_on_gpu(setup.config, config):
        return None
    if tower is None:
        assert isinstance(model, TransformersModel), "no other kind sees by itself"
        seer: VisionTower = model
    else:
        path, device = Path(config.model_path), gpu.torch_device
        with memory_for("the vision tower", "a larger GPU has room"):
            seer = load_tower(tower, sight, None, path, config.load_format, setup.dtype, device)
    return ImageEncoder(seer, sight, place=lambda pixels: upload(gpu, pixels))


class RankLoader:
    """The `ModelLoader` of tp or pp above 1: loads rank 0's share, and starts the other ranks."""

    def __init__(self, site: LoadSite) -> None:
        self._site = site

    def suits(self, model: ModelConfig) -> bool:
        return self._site.config.num_ranks > 1

    def load(self, setup: ModelSetup, grammars: GrammarBackend) -> LoadedModel:
        """Raises ConfigError."""
        assert self._site.gpu is not None, "ranks have GPUs, or take the CPU for one"
        determinism.check_on_ranks(self._site.config, setup.config, setup.dtype)
        if not isinstance(setup.config, DecoderConfig):
            raise ConfigError(
                f"{self._site.config.divided_by} is not possible with "
                f"{setup.config.architecture}: transformers computes it, which divides nothing; "
                "without, it runs on one GPU"
            )
        rank_part(self._site.config, setup.config, 0)
        self._site.progress.enter("start ranks")
        config = rank_config(
            self._site.config, self._site.step, setup.config, setup.dtype, setup.max_context_len
        )
        progress = self._site.progress
        followers = Followers.start(config, self._site.gpu, progress.await_ranks, progress.enter)
        site = dataclasses.replace(self._site, config=config)
        loaded = load_on_gpu(site, setup, followers.group)
        return LoadedModel(
            loaded.pool,
            lambda tables: loaded.make_runner(tables.all, grammars, followers),
            _make_projections(config, setup.config, followers, loaded),
            remark=loaded.remark,
            no_images=model_limits.no_images_on_gpu(setup.config, self._site.config),
            gpu=loaded.card,
        )


def _make_projections(
    config: EngineConfig, model: DecoderConfig, followers: Followers, loaded: GpuModel
) -> MakeProjections:
    if config.pp == 1:
        return RankLoras(model, followers, loaded.lora_projections).make

    def refuse(weights: LoraWeights) -> NoReturn:
        raise ConfigError(f"adapters are not possible with pp={config.pp}: stages have none")

    return refuse

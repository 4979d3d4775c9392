"""Models that run on one GPU, or on several."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from shared.errors import ConfigError
from shared.protocol.role_cards import LOAD_WEIGHTS
from worker.engine.cuda.attention.attention_choice import choose_attention
from worker.engine.cuda.gpu_loading import load_gpu_model
from worker.engine.cuda.gpu_model import GpuModel
from worker.engine.cuda.tensor_parallel.followers import Followers
from worker.engine.cuda.tensor_parallel.rank_config import rank_config
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup
from worker.engine.cuda.tensor_parallel.rank_loras import RankLoras
from worker.engine.cuda.tensor_parallel.rank_share import divide
from worker.engine.cuda.trials.kernel_trials import kernel_trials
from worker.engine.device.gpu_device import upload
from worker.engine.device.gpu_memory import memory_for
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.images import ImageEncoder, VisionTower
from worker.engine.loading import determinism, model_limits
from worker.engine.loading.model_loader import LoadedModel, LoadSite
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model import Model
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.transformers_model import TransformersModel
from worker.engine.models.vision.tower import load_tower


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
            no_images=model_limits.no_images_on_gpu(setup.config, tp=self._site.config.tp),
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
    layers = setup.config.attention_layers
    if group is not None:
        assert isinstance(setup.config, DecoderConfig), "no other kind is divided"
        layers = divide(setup.config, group.size).attention_layers
    progress.enter("choose attention kernels")
    with kernel_trials(gpu) as trials:
        attention = choose_attention(
            config, gpu, layers, setup.dtype, step, trials.stopwatch, group
        )
        progress.enter(LOAD_WEIGHTS)
        model = load_gpu_model(config, setup, gpu, progress.on_weights, trials.choose_tiles, group)
    eyes = _load_eyes(site, setup, model)
    progress.enter("capture CUDA graphs", 1.0)
    return GpuModel(config, step, gpu, model, setup, attention, group, eyes)


def _load_eyes(site: LoadSite, setup: ModelSetup, model: Model) -> ImageEncoder | None:
    """The tower on the GPU, or the whole model that has one. None: it takes no images there."""
    sight, tower, gpu, config = setup.config.sight, setup.config.tower, site.gpu, site.config
    assert gpu is not None, "it is a GPU"
    if sight is None or model_limits.no_images_on_gpu(setup.config, tp=config.tp):
        return None
    if tower is None:
        assert isinstance(model, TransformersModel), "no other kind sees by itself"
        seer: VisionTower = model
    else:
        path, device = Path(config.model_path), gpu.torch_device
        with memory_for("the vision tower", "a larger GPU has room"):
            seer = load_tower(tower, sight, None, path, config.load_format, setup.dtype, device)
    return ImageEncoder(seer, sight, place=lambda pixels: upload(gpu, pixels))


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
                f"tp={self._site.config.tp} is not possible with {setup.config.architecture}: "
                "transformers computes it, which divides nothing; tp=1 runs it on one GPU"
            )
        divide(setup.config, self._site.config.tp)
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
            RankLoras(setup.config, followers, loaded.lora_projections).make,
            remark=loaded.remark,
            no_images=model_limits.no_images_on_gpu(setup.config, tp=self._site.config.tp),
            gpu=loaded.card,
        )

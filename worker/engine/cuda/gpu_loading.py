"""Weights on their way to a GPU: a model's, or a rank's share of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from shared.telemetry.log import get_logger
from worker.engine.cuda.kv.kv_dtype import check_kv_scales
from worker.engine.cuda.layers.gpu_layer_ops import PlainGpuLayerOps
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup
from worker.engine.cuda.tensor_parallel.rank_part import rank_part
from worker.engine.cuda.tensor_parallel.rank_share import RankLayerOps, RankShare
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.gpu_memory import memory_for
from worker.engine.layers.checked_linears import choose_linears
from worker.engine.layers.linear import Linears, PlainLinears
from worker.engine.models.decoder import DecoderModel
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.expert_weights import ExpertMaker
from worker.engine.models.layer_ops import LayerOps, TorchLayerOps
from worker.engine.models.layer_ropes import LayerRopes
from worker.engine.models.loader import OnProgress, WeightReader
from worker.engine.models.model import Model
from worker.engine.models.model_loading import open_weights
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.model_stage import StageReader, read_elsewhere
from worker.engine.models.transformers_config import TransformersConfig
from worker.engine.models.transformers_model import load_transformers_model
from worker.engine_link.engine_config import EngineConfig

if TYPE_CHECKING:  # it imports triton
    from worker.engine.cuda.layers.skinny_linears import ChooseTiles

log = get_logger(__name__)


class ReaderToDevice:
    """Reads tensors and puts them on a device."""

    def __init__(self, reader: WeightReader, device: torch.device) -> None:
        self._reader = reader
        self._device = device

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self._reader.read(name, *shape).to(self._device)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        return self._reader.read_as(dtype, name, *shape).to(self._device)

    def has(self, name: str) -> bool:
        return self._reader.has(name)


def load_gpu_model(
    config: EngineConfig,
    setup: ModelSetup,
    gpu: GpuDevice,
    on_progress: OnProgress,
    choose_tiles: ChooseTiles,
    group: RankGroup | None = None,
) -> Model:
    """A rank's share of it, where there is a group. Raises ConfigError."""
    path, load_format, device = Path(config.model_path), config.load_format, gpu.torch_device
    model_config, dtype = setup.config, setup.dtype
    if load_format != "dummy":
        check_kv_scales(config.kv_dtype, path)
    with memory_for("the weights", "a smaller model, --tp or a larger GPU has room"):
        if isinstance(model_config, TransformersConfig):
            assert group is None, "none of these is divided"
            return load_transformers_model(
                model_config, path, load_format, dtype, setup.max_context_len, on_progress, device
            )
        assert isinstance(model_config, DecoderConfig)
        part = model_config if group is None else rank_part(config, model_config, group.rank)
        if part.stage is not None:
            elsewhere = read_elsewhere(model_config, part.stage)
            model_config = dataclasses.replace(model_config, unread_parts=elsewhere)
        with open_weights(model_config, path, load_format, dtype, on_progress, device) as reader:
            linears, settle = _make_linears(config, dtype, gpu, choose_tiles)
            model = _load_decoder(config, setup, part, reader, gpu, linears, group)
            settle()
            return model


def _load_decoder(
    config: EngineConfig,
    setup: ModelSetup,
    part: DecoderConfig,
    reader: WeightReader,
    gpu: GpuDevice,
    linears: Linears,
    group: RankGroup | None,
) -> DecoderModel:
    ropes = LayerRopes.of(part, setup.max_context_len, setup.dtype, gpu.torch_device)
    ops: LayerOps = PlainGpuLayerOps(ropes, part.attention_layers)
    experts: ExpertMaker | None = None
    if config.device == "cpu":
        ops = TorchLayerOps(ropes, part.attention_layers, linears)
    elif config.attention_backend != "torch":
        from worker.engine.cuda.layers.triton_experts import TritonExpertMaker
        from worker.engine.cuda.layers.triton_layer_ops import TritonLayerOps

        ops = TritonLayerOps(ropes, part.attention_layers, linears)
        experts = TritonExpertMaker(ops, is_fixed=config.deterministic)
    on_device = ReaderToDevice(reader, gpu.torch_device)
    if group is None:
        return DecoderModel(part, on_device, ops, experts)
    if part.stage is not None:
        return DecoderModel(part, on_device, ops, experts, partial(StageReader, part.stage))
    adds_in_order = config.deterministic or config.device == "cpu"
    ops = RankLayerOps(ops, group, adds_in_order=adds_in_order)
    assert isinstance(setup.config, DecoderConfig)
    share = RankShare(setup.config, group.rank, group.size)
    return DecoderModel(part, on_device, ops, experts, share.reader)


def _make_linears(
    config: EngineConfig, dtype: torch.dtype, gpu: GpuDevice, choose_tiles: ChooseTiles
) -> tuple[Linears, Callable[[], None]]:
    """And what is to be done when all are made."""
    if config.device == "cpu":
        checked = choose_linears(dtype)
        return checked, lambda: log.info(
            "matrix_products", by=checked.name, because=checked.account()
        )
    if config.deterministic:
        from worker.engine.cuda.layers.triton_layer_ops import FixedLinears

        return FixedLinears(), lambda: None
    if config.linears == "auto" and config.attention_backend != "torch" and dtype == torch.bfloat16:
        from worker.engine.cuda.layers.skinny_linears import SkinnyLinears

        skinny = SkinnyLinears(choose_tiles, gpu.torch_device)
        return skinny, skinny.settle
    return PlainLinears(), lambda: None

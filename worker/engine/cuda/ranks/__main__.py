"""A follower: `python -m worker.engine.cuda.ranks RANK ORDERS_FD SUMS_FD CONFIG`."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import traceback
from pathlib import Path

import torch

from shared.cli.garbage import settle_garbage
from shared.errors import ConfigError
from shared.telemetry.log import setup_logging
from worker.engine.cuda.attention.attention_choice import choose_attention
from worker.engine.cuda.gpu_loading import load_gpu_model
from worker.engine.cuda.gpu_model import GpuModel
from worker.engine.cuda.steps.rank_runner import RankRunner
from worker.engine.cuda.tensor_parallel.rank_config import rank_device
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup, RankSockets
from worker.engine.cuda.tensor_parallel.rank_loras import FollowerLoras
from worker.engine.cuda.tensor_parallel.rank_orders import (
    DropAdapters,
    KeepAdapter,
    KeepTokens,
    OrderInbox,
    RankOrder,
    RunHead,
    RunStep,
)
from worker.engine.cuda.tensor_parallel.rank_part import rank_part
from worker.engine.cuda.trials.kernel_trials import kernel_trials
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.lora.lora_adapter import lora_batch
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_setup import DTYPES, ModelSetup
from worker.engine.models.registry import read_model_config
from worker.engine.process import die_with_parent, leave
from worker.engine.request.step_limits import StepLimits
from worker.engine.request.token_ranges import Ints
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.rank_links import CANNOT_LOAD


class Follower:
    """Takes orders until rank 0 is gone, with which its process ends."""

    def __init__(
        self,
        device: GpuDevice,
        runner: RankRunner,
        inbox: OrderInbox,
        loras: FollowerLoras,
        hidden_size: int,
        dtype: torch.dtype,
    ) -> None:
        self._device = device
        self._runner = runner
        self._loras = loras
        self._inbox = inbox
        self._hidden_size = hidden_size
        self._dtype = dtype

    def run(self) -> None:
        while True:
            self._follow(self._inbox.get())

    def _follow(self, order: RankOrder) -> None:
        @torch.inference_mode()
        def work() -> None:
            match order:
                case RunStep():
                    self._run_step(order)
                case RunHead(num_rows=num_rows):
                    self._runner.head(self._empty(num_rows, self._hidden_size, dtype=self._dtype))
                case KeepTokens(sample_rows=sample_rows):
                    self._keep(sample_rows)
                case KeepAdapter():
                    self._loras.keep(order)
                case DropAdapters():
                    self._loras.drop(order)

        self._device.enqueue(work)

    def _run_step(self, step: RunStep) -> None:
        loras = None
        if len(step.adapters):
            loras = lora_batch(self._loras.of_rows(step.adapters), step.plan.query_lens)
        self._runner.compute(step, loras=loras)
        if step.plan.num_samples and not step.chooses_late and self._runner.chooses:
            self._keep(step.plan.sample_rows)

    def _keep(self, sample_rows: Ints) -> None:
        self._runner.keep(self._empty(len(sample_rows), dtype=torch.int64), sample_rows)

    def _empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """To be filled with what rank 0 shares."""
        return torch.empty(shape, dtype=dtype, device=self._device.torch_device)


def main(argv: list[str]) -> int:
    """The exit code: never 0 but when rank 0 is gone."""
    die_with_parent()
    rank, orders_fd, sums_fd = map(int, argv[:3])
    orders = socket.socket(fileno=orders_fd)
    inbox = OrderInbox(orders, on_end=lambda: os._exit(0))
    config = EngineConfig.from_json(argv[3])
    setup_logging("engine", config.log_level, config.log_format)
    try:
        sockets = RankSockets(rank, config.num_ranks, [socket.socket(fileno=sums_fd)])
        _make_follower(config, sockets, inbox).run()
    except ConfigError as exc:
        sys.stderr.write(f"rank {rank} of {config.num_ranks}: {exc}\n")
        orders.sendall(bytes([CANNOT_LOAD]))
        return CANNOT_LOAD
    except Exception:
        traceback.print_exc()
    return 1


def _make_follower(config: EngineConfig, sockets: RankSockets, inbox: OrderInbox) -> Follower:
    """Raises ConfigError."""
    torch.set_num_threads(config.num_threads or 1)
    device = rank_device(config, sockets.rank)
    group = RankGroup.join(device, sockets, config.node_address)
    model_config = read_model_config(Path(config.model_path), config.quantization, on_gpu=True)
    assert isinstance(model_config, DecoderConfig), "rank 0 has looked"
    assert config.max_context_len is not None, "rank 0 has chosen it"
    setup = ModelSetup(model_config, DTYPES[config.dtype], config.max_context_len)
    step = StepLimits.of(config, on_gpu=True)
    part = rank_part(config, model_config, group.rank)
    with torch.inference_mode():
        with kernel_trials(device) as trials:
            attention = choose_attention(
                config, device, part.attention_layers, setup.dtype, step, trials.stopwatch, group
            )
            model = load_gpu_model(
                config, setup, device, lambda _: None, trials.choose_tiles, group
            )
        own = dataclasses.replace(setup, config=part)
        loaded = GpuModel(config, step, device, model, own, attention, group)
    settle_garbage()
    loras = FollowerLoras(loaded.lora_projections, setup.dtype)
    return Follower(device, loaded.rank_runner, inbox, loras, model_config.hidden_size, setup.dtype)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))

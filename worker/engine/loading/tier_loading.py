"""Opens the disk that pages of keys and values go to, for one model as it is computed here."""

from __future__ import annotations

from pathlib import Path

import torch

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.model_options import ModelOptions
from shared.errors import ConfigError
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.device.code_digest import ENGINE_CODE, code_digest
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.loading.model_loader import OutsidePool
from worker.engine.models.model_setup import ModelSetup
from worker.engine.tiers.disk_tier import DiskTier
from worker.engine.tiers.kv_tier import KVTier
from worker.engine.tiers.page_file import PageIdentity
from worker.engine.tiers.peer_pages import TcpTransfer
from worker.engine_link.engine_config import EngineConfig


def refuse_tier(config: EngineConfig) -> None:
    """Raises ConfigError where one is wanted, of a model whose pages stay where they are."""
    if config.kv_disk_dir is not None:
        raise ConfigError(
            f"kv_disk_dir={config.kv_disk_dir} is for models that make tokens, on a CPU with tp=1: "
            "a GPU's pages do not leave it yet; leave it out"
        )


def check_tier(config: EngineConfig, setup: ModelSetup) -> None:
    """Raises ConfigError where a page is not all that a text is gone on with."""
    if config.kv_disk_dir is None:
        return
    if config.guesses_with_pages:
        raise ConfigError(
            f"kv_disk_dir={config.kv_disk_dir} is not possible with {config.guesses_by}: what that "
            "keeps does not go to disk with its pages yet; leave one of them out"
        )
    if setup.config.state_layers:
        raise ConfigError(
            f"kv_disk_dir={config.kv_disk_dir} is not possible with {setup.config.architecture}: "
            "the states of its recurrent layers do not go to disk with their pages yet; leave it "
            "out"
        )


def open_tier(
    config: EngineConfig, setup: ModelSetup, pool: KVCachePool, kernel_set: str
) -> OutsidePool | None:
    """None where none is wanted. Raises ConfigError."""
    if config.kv_disk_dir is None:
        return None
    identity = _identity(config, setup, pool.layout, kernel_set)
    folder = Path(config.kv_disk_dir).expanduser()
    tier = DiskTier(folder, config.kv_disk_bytes, identity, pool.num_page_bytes)
    return OutsidePool(tier, pool, TcpTransfer(identity, pool.num_page_bytes))


def remark_on_tier(config: EngineConfig, tier: KVTier) -> str:
    """What the operator should know."""
    return (
        f"keys and values that leave memory go to {config.kv_disk_dir}, up to "
        f"{config.kv_disk_bytes / (1 << 30):.1f} GiB of disk, where "
        f"{tier.num_pages * config.page_size} tokens of this model are now"
    )


def _identity(
    config: EngineConfig, setup: ModelSetup, layout: KVLayout, kernel_set: str
) -> PageIdentity:
    options = ModelOptions(
        max_context_len=config.max_context_len,
        quantization=config.quantization,
        kv_dtype=config.kv_dtype,
        cpu_activations=config.cpu_activations,
    )
    is_dummy = config.load_format == "dummy"
    files = ModelFiles.read(Path(config.model_path), options=options, has_dummy_weights=is_dummy)
    # How torch adds depends on its version, the processor, and the number of threads
    by_torch = f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
    threads = "" if kernel_set else f", {torch.get_num_threads()} threads"
    return PageIdentity(
        revision=files.revision,
        code=code_digest(ENGINE_CODE),
        kernel_set=f"{kernel_set}, {by_torch}{threads}",
        dtype=f"{layout.dtype}, computed in {setup.dtype}",
        groups=tuple(
            (each.num_layers, each.num_kv_heads, each.head_dim, each.num_vectors)
            for each in layout.groups
        ),
        page_size=layout.page_size,
    )

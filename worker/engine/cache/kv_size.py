"""How many pages of keys and values the engine has."""

from __future__ import annotations

from shared.errors import ConfigError
from worker.engine.device.host_limits import available_memory_bytes
from worker.engine_link.engine_config import EngineConfig

MAX_DEFAULT_BYTES = 1 << 30
DEFAULT_SHARE = 0.25  # of the available memory


def num_kv_pages(config: EngineConfig, bytes_per_token: int) -> int:
    """From a number of tokens, or from memory. Raises ConfigError when it is none."""
    if config.num_kv_tokens is not None:
        num_pages = config.num_kv_tokens // config.page_size
    else:
        num_pages = _kv_bytes(config) // (bytes_per_token * config.page_size)
    if num_pages < 1:
        raise ConfigError(
            f"the memory for keys and values does not hold one page of {config.page_size} tokens"
        )
    return num_pages


def _kv_bytes(config: EngineConfig) -> int:
    if config.kv_memory_bytes is not None:
        return config.kv_memory_bytes
    return min(MAX_DEFAULT_BYTES, int(available_memory_bytes() * DEFAULT_SHARE))

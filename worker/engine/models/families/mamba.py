"""Mamba 2's layers, as several hybrids tell of them."""

from __future__ import annotations

import math

from shared.errors import ConfigError
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import MambaConfig


def mamba_config(config: ConfigFile, hidden_size: int) -> MambaConfig:
    """Raises ConfigError."""
    config.refuse("hidden_act", "silu")
    has_bias = config.boolean("mamba_proj_bias", default=False)
    num_heads, num_groups = config.integer("mamba_n_heads"), config.integer("mamba_n_groups")
    if num_heads % num_groups:
        raise ConfigError(
            f"{config.path}: mamba_n_heads={num_heads} are not shared by "
            f"mamba_n_groups={num_groups}"
        )
    return MambaConfig(
        hidden_size=hidden_size,
        num_heads=num_heads,
        head_dim=config.integer("mamba_d_head"),
        num_groups=num_groups,
        state_size=config.integer("mamba_d_state"),
        kernel_size=config.integer("mamba_d_conv", least=2),
        has_conv_bias=config.boolean("mamba_conv_bias", default=True),
        has_in_bias=has_bias,
        has_out_bias=has_bias,
        step_limits=_step_limits(config),
        norm_eps=config.number("rms_norm_eps", 1e-6),
    )


def _step_limits(config: ConfigFile) -> tuple[float, float]:
    limits = config.get("time_step_limit", None)
    if limits is None:
        return 0.0, math.inf
    if (
        not isinstance(limits, list | tuple)
        or len(limits) != 2
        or not all(isinstance(each, int | float) for each in limits)
        or not 0 <= limits[0] <= limits[1]
    ):
        raise ConfigError(
            f"{config.path}: 'time_step_limit' must be the least and the most, not {limits!r}"
        )
    return float(limits[0]), float(limits[1])

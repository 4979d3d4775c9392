"""The layer that a configuration tells of."""

from __future__ import annotations

from typing import TypeAlias

from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.recurrent.channel_mamba_mixer import ChannelMambaMixer
from worker.engine.models.recurrent.delta_net_mixer import DeltaNetMixer
from worker.engine.models.recurrent.kimi_delta_mixer import KimiDeltaMixer
from worker.engine.models.recurrent.lightning_mixer import LightningMixer
from worker.engine.models.recurrent.mamba_mixer import MambaMixer
from worker.engine.models.recurrent.recurrent_config import (
    ChannelMambaConfig,
    DeltaNetConfig,
    KimiDeltaConfig,
    LightningConfig,
    RecurrentConfig,
    ShortConvConfig,
)
from worker.engine.models.recurrent.short_conv_mixer import ShortConvMixer

RecurrentMixer: TypeAlias = (
    ShortConvMixer
    | MambaMixer
    | ChannelMambaMixer
    | DeltaNetMixer
    | KimiDeltaMixer
    | LightningMixer
)


def make_recurrent_mixer(
    config: RecurrentConfig, weights: DecoderWeights, prefix: str, ops: LayerOps, state_id: int
) -> RecurrentMixer:
    """`prefix` of the names of its tensors, `state_id` its place among the recurrent layers."""
    if isinstance(config, ShortConvConfig):
        return ShortConvMixer(config, weights, prefix, ops, state_id)
    if isinstance(config, DeltaNetConfig):
        return DeltaNetMixer(config, weights, prefix, ops, state_id)
    if isinstance(config, KimiDeltaConfig):
        return KimiDeltaMixer(config, weights, prefix, ops, state_id)
    if isinstance(config, LightningConfig):
        return LightningMixer(config, weights, prefix, ops, state_id)
    if isinstance(config, ChannelMambaConfig):
        return ChannelMambaMixer(config, weights, prefix, ops, state_id)
    return MambaMixer(config, weights, prefix, ops, state_id)

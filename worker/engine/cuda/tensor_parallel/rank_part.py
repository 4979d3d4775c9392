"""Which part of a model each rank computes."""

from __future__ import annotations

from worker.engine.cuda.tensor_parallel.rank_share import divide
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_stage import of_stage, stages_of
from worker.engine_link.engine_config import EngineConfig


def rank_part(config: EngineConfig, model: DecoderConfig, rank: int) -> DecoderConfig:
    """Raises ConfigError when the model cannot be divided so."""
    if config.pp == 1:
        return divide(model, config.tp)
    return of_stage(model, stages_of(model, config.pp)[stage_of_rank(rank, config.pp)])


def stage_of_rank(rank: int, num_stages: int) -> int:
    """Rank 0 has the last one: there tokens are chosen, by whom it is that plans."""
    return (rank - 1) % num_stages

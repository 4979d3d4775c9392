"""What is not possible with models whose tower stands beside a text model of its own."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_config import ModelConfig


def no_images_on_gpu(model: ModelConfig, *, tp: int) -> str:
    """Why images and audio are refused there; empty: they are not, or the model takes none."""
    if model.tower is None:
        return ""
    if model.sight is None:
        told = f"audio of {model.tower.architecture} is heard"
        return f"{told} on CPUs with tp=1 alone: this worker serves its text"
    has_inputs = isinstance(model, DecoderConfig) and model.layer_inputs is not None
    if model.sight.has_axes or model.sight.is_mutual or has_inputs:
        where = "on CPUs with tp=1 alone"
    elif tp > 1:
        where = "with tp=1 alone"
    else:
        return ""
    return f"images of {model.tower.architecture} are computed {where}: this worker serves its text"

"""What is not possible with models whose tower stands beside a text model of its own."""

from __future__ import annotations

from worker.engine.models.model_config import ModelConfig


def no_images_on_gpu(model: ModelConfig) -> str:
    """Why images are refused there; empty: they are not, or the model takes none anyway."""
    if model.tower is None:
        return ""
    return (
        f"images of {model.tower.architecture} are computed on CPUs with tp=1 alone: this worker "
        "serves its text"
    )

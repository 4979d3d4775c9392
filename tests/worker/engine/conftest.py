from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grouped queries (3 heads share one), untied embeddings, odd sizes."""
    from tests.worker.engine.tiny_models import save_tiny_llama  # late: it imports torch

    return save_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))

"""Makes the model of a supervisor known, with its adapters, before any of its workers runs."""

from __future__ import annotations

from deploy.local.serve_config import ServeConfig
from shared.catalog.adapter_catalog import AdapterCatalog
from shared.catalog.model_catalog import ModelCatalog
from shared.checkpoint.model_files import ModelFiles
from shared.cluster import Cluster
from shared.protocol.model_cards import ModelCard
from worker.weights.lora_folder import register_loras


async def register_served(
    cluster: Cluster, files: ModelFiles, config: ServeConfig, *, starts_over: bool = False
) -> ModelCard:
    """Announced at once where there may be no worker: whoever asks has one started.

    Raises ConfigError or BrokerError.
    """
    assert config.model_name is not None
    catalog = ModelCatalog(cluster)
    card = await catalog.register(
        files,
        config.model_name,
        is_announced=not config.worker_range.least,
        starts_over=starts_over,
    )
    await register_loras(
        AdapterCatalog(cluster),
        card.pool,
        config.lora,
        config.max_lora_rank,
        may_replace=not await catalog.has_workers(card.pool),
    )
    return card

"""What `jetflock serve` prints when everything is ready."""

from __future__ import annotations

import json
import shlex

from deploy.local.http_probe import http_url
from deploy.local.serve_config import ServeConfig


def ready_block(config: ServeConfig, has_own_nats: bool, elapsed_s: float) -> str:
    """URL, model, workers, NATS, and a curl to paste."""
    data = f"  Data     {config.own_data_dir}\n" if has_own_nats else ""
    orders = f"  Orders   {base_url(config)}/#cluster, with the admin key\n"
    workers = config.worker_range
    plural = "" if workers.most == 1 else "es"
    return (
        f"\njetflock is ready ({elapsed_s:.1f} s)\n\n"
        f"  URL      {base_url(config)}\n"
        f"  Model    {config.model_name}\n"
        f"  Workers  {workers} process{plural}\n"
        f"  NATS     {config.nats_url}\n"
        f"{data}{orders if config.takes_orders_from_page else ''}\n"
        f"  {curl(config)}\n\n"
        "Ctrl-C stops it.\n\n"
    )


def base_url(config: ServeConfig) -> str:
    """Where a client on this machine finds the API."""
    return http_url(config.host, config.port)


def curl(config: ServeConfig) -> str:
    """A command line that a person can paste."""
    body = {
        "model": config.model_name,
        "messages": [{"role": "user", "content": "Who are you?"}],
    }
    has_key = bool(config.api_key or config.api_key_file)
    key = '-H "Authorization: Bearer $JETFLOCK_API_KEY" ' if has_key else ""
    return (
        f"curl {base_url(config)}/v1/chat/completions {key}"
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )

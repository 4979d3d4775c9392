"""What `jetflock serve` says of itself: what it is about to do, and where it is when it is done."""

from __future__ import annotations

import json
import re
import shlex

from deploy.local.http_probe import http_url
from deploy.local.progress import amount_done
from deploy.local.serve_config import DEMO_MODEL_NAME, ServeConfig
from shared.checkpoint.model_files import ModelFiles
from shared.gguf.metadata import CONFIG_SECTION
from shared.machine.installation import command_line
from shared.protocol.role_cards import WorkerCard
from shared.storage.byte_budget import in_units

_USERINFO = re.compile(r"(?<=://)[^/@,]+@")


def opening_words(config: ServeConfig, files: ModelFiles, has_own_nats: bool) -> list[str]:
    """Plain sentences, before anything is started."""
    is_demo = config.model_name == DEMO_MODEL_NAME
    kind = ", the demo model: it tells tiny stories, and is no assistant" if is_demo else ""
    size = amount_done(1.0, files.num_weight_bytes, None).partition(" of ")[2]
    range_ = config.worker_range
    workers = f"{range_} worker{'' if range_.most == 1 else 's'}"
    nats = (
        f"a nats-server (data in {config.own_data_dir})"
        if has_own_nats
        else f"with NATS at {config.nats_url}"
    )
    return [
        f"serving {config.model_name} ({size}{_stored(files)}){kind}",
        f"starting {nats}, a frontend, a detokenizer and {workers}; Ctrl-C stops all of it",
    ]


def _stored(files: ModelFiles) -> str:
    """What the numbers of a GGUF file are, and become."""
    told = files.config.get(CONFIG_SECTION)
    if not isinstance(told, dict):
        return ""
    return (
        f" of {told['format']}, {told['bits_per_weight']:g} bits a weight; they are computed in "
        "16 or 32 bits (--dtype), and take as much memory"
    )


def computing_words(card: WorkerCard) -> str:
    """Where a worker that is ready computes, and in what."""
    if card.gpu is not None:
        several = f"{card.gpu.num_gpus} x " if card.gpu.num_gpus > 1 else ""
        return f"on {several}{card.gpu.name} in {card.gpu.dtype}"
    kernels = f" ({card.kernel_set})" if card.kernel_set else ""
    return f"on the processor in {card.dtype}{kernels}" if card.dtype else "without a model"


def ready_block(
    config: ServeConfig,
    has_own_nats: bool,
    elapsed_s: float,
    times: str = "",
    computing: str = "",
) -> str:
    """Page, API, model, workers, NATS, and a curl to paste."""
    data = f"  Data     {config.own_data_dir}\n" if has_own_nats else ""
    if config.kv_disk_dir is not None:
        data += f"  KV disk  {config.kv_disk_dir}, up to {in_units(config.kv_disk_bytes)}\n"
    workers = config.worker_range
    plural = "" if workers.most == 1 else "es"
    url = base_url(config)
    admin = f"  Admin    {_admin(config, url)}\n" if config.admin_port else ""
    table = f"\n{times}" if times else ""
    chat = f"{command_line()} chat --url {url}"
    return (
        f"\njetflock is ready ({elapsed_s:.1f} s)\n\n"
        f"  Page     {url}\n"
        f"  API      {url}/v1, described by {url}/openapi.json\n"
        f"  Model    {config.model_name}\n"
        f"  Workers  {workers} process{plural}{computing and f', {computing}'}\n"
        f"  NATS     {config.nats_url}\n"
        f"{admin}{data}{table}\n"
        f"  {curl(config)}\n"
        f"  {chat}\n\n"
        "Ctrl-C stops it.\n\n"
    )


def ready_facts(config: ServeConfig, elapsed_s: float) -> dict[str, object]:
    """The same for a program that reads logs."""
    return {
        "event": "ready",
        "url": base_url(config),
        "model": config.model_name,
        "nats_url": _USERINFO.sub("", config.nats_url),
        "elapsed_s": round(elapsed_s, 2),
    }


def base_url(config: ServeConfig) -> str:
    """Where a client on this machine finds the API."""
    return http_url(config.host, config.port)


def _admin(config: ServeConfig, page_url: str) -> str:
    url = http_url(config.admin_host, config.admin_port)
    if not config.takes_orders_from_page:
        return url
    return f"{url}; {page_url}/#cluster drains and kills workers, with the admin key"


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

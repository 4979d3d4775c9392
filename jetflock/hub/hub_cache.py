"""What the hub's client has on this disk: the same folder that serve and workers read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CachedRepoInfo, HFCacheInfo, scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from deploy.local.preflight import check_readable
from shared.checkpoint.model_files import ModelFiles, local_checkpoint
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.checkpoint.weights.weight_files import check_weights
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A repository of the cache, and the folder of it that serve would take."""

    model: str  # owner/name
    revision: str  # of the hub: a commit
    path: Path
    num_bytes: int  # of all its revisions
    modified_at: float  # seconds since 1970


def fetched_models() -> Iterator[FetchedModel]:
    """The models by name."""
    for repo in sorted(_repos(), key=lambda each: each.repo_id):
        if not repo.revisions:  # begun, and nothing is there yet
            continue
        latest = max(repo.revisions, key=lambda each: ("main" in each.refs, each.last_modified))
        yield FetchedModel(
            repo.repo_id,
            latest.commit_hash,
            latest.snapshot_path,
            repo.size_on_disk,
            latest.last_modified,
        )


def remove_fetched(model: str) -> int:
    """All revisions of it. Returns the bytes that are free now. Raises ConfigError."""
    cache = _cache()
    if cache is None or not (found := [each for each in _models(cache) if each.repo_id == model]):
        raise ConfigError(f"{model!r} is not on this machine; jetflock list shows what is")
    [repo] = found
    strategy = cache.delete_revisions(*(each.commit_hash for each in repo.revisions))
    strategy.execute()
    if repo.repo_path.exists():
        raise ConfigError(f"{repo.repo_path} could not be removed: check its permissions")
    return strategy.expected_freed_size


def why_not_whole(path: Path) -> str | None:
    """What is missing of a checkpoint, or unreadable; what the engine says of it is not asked."""
    try:
        check_readable(path)
        files = ModelFiles.read(local_checkpoint(path))
        _ = files.max_context_len, files.vocab_size
        check_weights(files.path)
    except ConfigError as exc:
        return str(exc)
    return None if TokenizerBundle.is_in(files.path) else "there is no tokenizer.json"


def _repos() -> list[CachedRepoInfo]:
    cache = _cache()
    return [] if cache is None else _models(cache)


def _models(cache: HFCacheInfo) -> list[CachedRepoInfo]:
    return [repo for repo in cache.repos if repo.repo_type == "model"]


def _cache() -> HFCacheInfo | None:
    try:
        return scan_cache_dir()
    except CacheNotFound:
        return None

"""What a client finds here in place of a route that another server has."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_ADMIN = "on the admin plane's own port (jetflock serve --admin-port)"
_CLUSTER = "GET /v1/models and GET /cluster tell what is served and how it does"
_BRINGS = "workers bring models: jetflock worker MODEL"
# By path; what ends with a slash is the beginning of paths.
_HINTS: Mapping[str, str] = {
    "/completion": "POST /v1/completions",
    "/completions": "POST /v1/completions",
    "/embedding": "POST /v1/embeddings",
    "/encode": "POST /v1/embeddings",
    "/api/embeddings": "POST /api/embed",
    "/generate_stream": "POST /generate with 'stream': true",
    "/inference/v1/generate": "POST /generate with 'input_ids'",
    "/load": "GET /v1/loads",
    "/info": _CLUSTER,
    "/slots": _CLUSTER,
    "/server_info": _CLUSTER,
    "/model_info": _CLUSTER,
    "/get_model_info": _CLUSTER,
    "/get_server_info": f"{_CLUSTER}; GET /get_server_info is {_ADMIN}",
    "/flush_cache": f"POST /flush_cache is {_ADMIN}",
    "/reset_prefix_cache": f"POST /flush_cache is {_ADMIN}",
    "/pause": f"POST /pause_generation is {_ADMIN}",
    "/pause_generation": f"POST /pause_generation is {_ADMIN}",
    "/continue_generation": f"POST /continue_generation is {_ADMIN}",
    "/sleep": f"POST /sleep is {_ADMIN}",
    "/wake_up": f"POST /wake_up is {_ADMIN}",
    "/is_sleeping": f"GET /is_sleeping is {_ADMIN}",
    "/start_profile": f"POST /start_profile is {_ADMIN}",
    "/stop_profile": f"POST /stop_profile is {_ADMIN}",
    "/update_weights_from_disk": f"POST /update_weights_from_disk is {_ADMIN}",
    "/v1/load_lora_adapter": f"POST /v1/load_lora_adapter is {_ADMIN}",
    "/v1/unload_lora_adapter": f"POST /v1/unload_lora_adapter is {_ADMIN}",
    "/load_lora_adapter": f"POST /v1/load_lora_adapter is {_ADMIN}",
    "/unload_lora_adapter": f"POST /v1/unload_lora_adapter is {_ADMIN}",
    "/api/pull": _BRINGS,
    "/api/push": _BRINGS,
    "/api/create": _BRINGS,
    "/api/copy": _BRINGS,
    "/api/delete": _BRINGS,
    "/api/blobs/": _BRINGS,
}


def hint(path: str, served: Collection[str]) -> str:
    """A sentence; empty where nobody knows what the client wants."""
    for near in (path.rstrip("/"), f"/v1{path}", path.removeprefix("/v1"), path.lower()):
        if near != path and near in served:
            return f"There is {near}."
    words = _HINTS.get(path.rstrip("/")) or _hint_of_beginning(path)
    return f"In jetflock: {words}." if words else ""


def _hint_of_beginning(path: str) -> str:
    begun = (
        words for known, words in _HINTS.items() if known[-1] == "/" and path.startswith(known)
    )
    return next(begun, "")

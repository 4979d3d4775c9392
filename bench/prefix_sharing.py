"""`python -m bench.prefix_sharing`: what it costs that tenants do not share cached prefixes.

Tenants with one system prompt ask the demo model one after the other, each several times: first
each with a cache of its own, then with a cache of its own behind the system prompt, which is
declared, then all with one, in turns on fresh stacks.
"""

from __future__ import annotations

import enum
import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import cyclopts
import httpx

from bench.local_serve import local_serve
from jetflock.bench.stage_summary import percentile

MODEL = "jetflock-demo"
SENTENCE = "You are a patient librarian who answers in one short sentence. "
NUM_TOKENS = 4


class Sharing(enum.Enum):
    """What tenants have in common."""

    NOTHING = "a cache for each"
    SYSTEM_PROMPT = "the system prompt declared"
    ALL = "one cache for all"


def ask(client: httpx.Client, key: str, system: str, question: str) -> tuple[float, int, int]:
    """Seconds, prompt tokens, and how many of them were cached."""
    body = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ],
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
    }
    headers = {"Authorization": f"Bearer {key}"}
    answer = client.post("/v1/chat/completions", json=body, headers=headers)
    answer.raise_for_status()
    usage = answer.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return answer.elapsed.total_seconds(), usage["prompt_tokens"], cached


def measure(num_tenants: int, num_turns: int, num_chars: int, sharing: Sharing) -> dict[str, float]:
    names = [f"tenant-{idx}" for idx in range(num_tenants)]
    group = {"cache_group": "all"} if sharing is Sharing.ALL else {}
    tenants = [{"id": name, "keys": [{"key": name}], **group} for name in names]
    system = (SENTENCE * (num_chars // len(SENTENCE) + 1))[:num_chars]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        path.write_text(json.dumps({"tenants": tenants}))
        flags = ["--api-keys-file", str(path)]
        if sharing is Sharing.SYSTEM_PROMPT:
            declared = Path(folder) / "prefixes.json"
            messages = [{"role": "system", "content": system}]
            declared.write_text(json.dumps({"prefixes": [{"model": MODEL, "messages": messages}]}))
            flags += ["--shared-prefixes", str(declared)]
        with (
            local_serve(*flags, key=names[0]) as serve,
            httpx.Client(base_url=f"http://127.0.0.1:{serve.port}", timeout=60) as client,
        ):
            ask(client, names[0], "Warm up.", "Hi")
            found = [
                ask(client, name, system, f"Question {turn} of {name}?")
                for turn in range(num_turns)
                for name in names
            ]
    first = [seconds for seconds, _, _ in found[:num_tenants]]
    later = [seconds for seconds, _, _ in found[num_tenants:]]
    num_prompt, num_cached = sum(f[1] for f in found), sum(f[2] for f in found)
    return {
        "first request p50 ms": 1000 * statistics.median(first),
        "first request p90 ms": 1000 * percentile(first, 90),
        "later p50 ms": 1000 * statistics.median(later) if later else 0.0,
        "computed prompt tokens": num_prompt - num_cached,
        "cached prompt tokens": num_cached,
    }


def main(
    tenants: Annotated[int, cyclopts.Parameter(help="Tenants with the same system prompt.")] = 50,
    turns: Annotated[int, cyclopts.Parameter(help="Requests of each of them.")] = 3,
    chars: Annotated[int, cyclopts.Parameter(help="Length of the system prompt.")] = 1200,
    repeat: Annotated[int, cyclopts.Parameter(help="Repetitions; medians are printed.")] = 3,
) -> None:
    """Measure what tenants pay who do not share cached prefixes."""
    runs: dict[Sharing, list[dict[str, float]]] = {sharing: [] for sharing in Sharing}
    for _ in range(repeat):
        for sharing in Sharing:
            runs[sharing].append(measure(tenants, turns, chars, sharing))
    for sharing, found in runs.items():
        values = ", ".join(
            f"{name} {statistics.median(run[name] for run in found):.1f}" for name in found[0]
        )
        print(f"{sharing.value:26} {values}", flush=True)


if __name__ == "__main__":
    cyclopts.run(main)

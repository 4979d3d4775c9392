"""The results as tables in Markdown, fit for docs/gpu.md."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
# What a column says of a result: its head, the field, and how the field is written.
Column = tuple[str, str, str]

_DECODE: tuple[Column, ...] = (
    ("model", "model", ""),
    ("attention", "attention", ""),
    ("sampling", "sampling", ""),
    ("requests", "rows", "d"),
    ("ms a step", "step_ms", ".3f"),
    ("tokens/s", "tokens_per_s", ",.0f"),
    ("of the bandwidth", "share", ".0%"),
    ("host ms", "host_ms", ".2f"),
    ("schedule", "schedule_ms", ".2f"),
    ("plan", "plan_ms", ".2f"),
    ("launch", "launch_ms", ".2f"),
    ("post", "post_ms", ".2f"),
    ("GPU idle us", "idle_us", ".0f"),
)
_TABLES: tuple[tuple[str, str, tuple[Column, ...]], ...] = (
    ("Decode", "decode", _DECODE),
    (
        "Prefill",
        "prefill",
        (
            ("model", "model", ""),
            ("attention", "attention", ""),
            ("tokens", "tokens", "d"),
            ("chunk", "chunk", "d"),
            ("ms to the first token", "ttft_ms", ".1f"),
            ("tokens/s", "tokens_per_s", ",.0f"),
            ("of the products", "share", ".0%"),
        ),
    ),
    (
        "Offline",
        "offline",
        (
            ("model", "model", ""),
            ("what", "what", ""),
            ("requests", "requests", "d"),
            ("tokens/s", "tokens_per_s", ",.0f"),
            ("of the roofline", "share", ".0%"),
            ("prefix hits", "hit_rate", ".0%"),
            ("retractions", "retractions", "d"),
        ),
    ),
    (
        "Over NATS",
        "over_nats",
        (
            ("model", "model", ""),
            ("streams", "streams", "d"),
            ("ms a token", "token_ms", ".2f"),
            ("engine alone", "direct_ms", ".2f"),
            ("added", "added_ms", ".2f"),
            ("p99 gap", "gap_p99_ms", ".1f"),
            ("messages/s", "messages_per_s", ",.0f"),
        ),
    ),
    (
        "transformers, generate",
        "generate",
        (
            ("model", "model", ""),
            ("ms a token", "token_ms", ".2f"),
            ("times ours", "ratio", ".2f"),
        ),
    ),
    (
        "transformers, generate_batch",
        "generate_batch",
        (
            ("model", "model", ""),
            ("requests", "requests", "d"),
            ("tokens/s", "tokens_per_s", ",.0f"),
            ("ours, times theirs", "ratio", ".1f"),
        ),
    ),
    (
        "Goals",
        "goal",
        (
            ("goal", "goal", ""),
            ("accept", "accept", ".4g"),
            ("goal", "wanted", ".4g"),
            ("measured", "value", ".4g"),
            ("", "reached", ""),
        ),
    ),
)


def markdown(results: Sequence[Result], command: str) -> str:
    """Heading, tables, and what has failed."""
    parts = [_opening(results, command), _correctness(results), _tests(results)]
    parts.append(_attention(results))
    for title, stage, columns in _TABLES:
        rows = [
            result for result in results if result["stage"] == stage and not _is_missing(result)
        ]
        if rows:
            parts.append(f"**{title}**\n\n{_table(columns, rows)}")
    failed = [f"- {each['task']}: {each['failed']}" for each in results if "failed" in each]
    failed += [f"- {each['model']}: {each['skipped']}" for each in results if "skipped" in each]
    if failed:
        parts.append("**Not done**\n\n" + "\n".join(failed))
    return "\n\n".join(part for part in parts if part) + "\n"


def _is_missing(result: Result) -> bool:
    return "failed" in result or "skipped" in result


def _opening(results: Sequence[Result], command: str) -> str:
    facts: dict[str, Any] = {}
    for result in results:
        if result["stage"] == "environment" and "graph_nodes" not in result:
            facts |= result
    if "gpu" not in facts:
        return f"`{command}`, {time.strftime('%Y-%m-%d')}"
    versions = ", ".join(
        f"{name} {facts[name]}"
        for name in (
            "driver",
            "cuda",
            "python",
            "torch",
            "triton",
            "transformers",
            "flashinfer-python",
        )
        if facts.get(name, "none") != "none"
    )
    text = f"{time.strftime('%Y-%m-%d')}, {facts['gpu']}; {versions}; `{command}`."
    if "bytes_per_s" in facts:
        bandwidth, products = facts["bytes_per_s"] / 1e12, facts["flops_per_s"] / 1e12
        text += f" A copy moves {bandwidth:.2f} TB/s, products reach {products:.0f} TFLOP/s."
    return text


def _correctness(results: Sequence[Result]) -> str:
    cells = [result for result in results if "ok" in result]
    if not cells:
        return ""
    wrong = [f"{each['what']} ({each.get('backend', '')})" for each in cells if not each["ok"]]
    text = f"**Correctness**: {len(cells) - len(wrong)} of {len(cells)} cells agree"
    return text + (f"; not {', '.join(wrong)}." if wrong else ".")


def _tests(results: Sequence[Result]) -> str:
    of_tests = [result for result in results if result["stage"] == "tests"]
    counts = [result for result in of_tests if "ran" in result]
    if not counts:
        return ""
    passed, ran = (sum(result[what] for result in counts) for what in ("passed", "ran"))
    lines = [f"- `{each['test']}`: {each['why']}" for each in of_tests if "test" in each]
    return "\n".join([f"**Tests**: {passed} of {ran} pass.", *lines])


def _attention(results: Sequence[Result]) -> str:
    """The best backend of each cell."""
    best: dict[tuple[Any, ...], Result] = {}
    for result in results:
        if result["stage"] != "attention" or result.get("what") != "decode":
            continue
        cell = (result["heads"], result["context"], result["rows"])
        if cell not in best or result["us"] < best[cell]["us"]:
            best[cell] = result
    if not best:
        return ""
    columns: tuple[Column, ...] = (
        ("heads", "heads", ""),
        ("context", "context", "d"),
        ("requests", "rows", "d"),
        ("best", "backend", ""),
        ("us", "us", ".1f"),
        ("of the bandwidth", "share", ".0%"),
        ("plan us", "plan_us", ".0f"),
    )
    return f"**Decode attention, a layer**\n\n{_table(columns, [best[cell] for cell in best])}"


def _table(columns: Sequence[Column], rows: Sequence[Result]) -> str:
    heads = [head for head, _, _ in columns]
    lines = [heads, ["---"] * len(columns)]
    lines += [[_cell(row.get(field), form) for _, field, form in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)

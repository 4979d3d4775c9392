"""lm-evaluation-harness by its command: logprobs of choices, and texts, of a task of four lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TASKS = Path(__file__).parent / "tasks"


def evaluate(
    url: str, folder: Path, task: str, **model_args: Any
) -> tuple[dict[str, Any], list[Any]]:
    """The task's results and its samples."""
    given = {"model": "jetflock-demo", "base_url": f"{url}/completions", **model_args}
    given["tokenizer_backend"] = "remote"  # /tokenize, /detokenize, /tokenizer_info
    done = subprocess.run(
        [
            sys.executable, "-m", "lm_eval", "run", "--model", "local-completions",
            "--model_args", ",".join(f"{name}={value}" for name, value in given.items()),
            "--tasks", task, "--include_path", TASKS, "--log_samples",
            "--output_path", folder,
        ],
        cwd=TASKS,
        env={**os.environ, "HF_HOME": str(folder / "hf"), "HF_DATASETS_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    [results] = folder.rglob("results_*.json")
    [samples] = folder.rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    return json.loads(results.read_text())["results"][task], rows


def test_logprobs_of_choices(url: str, tmp_path: Path) -> None:
    results, samples = evaluate(url, tmp_path, "baby_animals", num_concurrent=4)
    assert results["acc,none"] == 1.0
    for sample in samples:
        assert all(float(logprob) < 0 for logprob, _ in sample["filtered_resps"])


def test_texts(url: str, tmp_path: Path) -> None:
    results, samples = evaluate(url, tmp_path, "animal_names")
    assert results["exact_match,none"] == 1.0, [sample["filtered_resps"] for sample in samples]

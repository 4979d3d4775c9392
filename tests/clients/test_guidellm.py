"""GuideLLM by its command: streamed chats and completions, all of them answered and counted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

GUIDELLM = Path(os.environ.get("GUIDELLM", ""))
MODEL = "jetflock-demo"
PROMPTS = ["Name three colours.", "What is 3 plus 4?", "Tell me a story.", "Who are you?"]


@pytest.mark.skipif(not GUIDELLM.is_file(), reason="make test-guidellm")
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_a_closed_loop(url: str, tmp_path: Path, route: str) -> None:
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "report.json"
    prompts.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in PROMPTS))
    target = url.removesuffix("/v1")
    done = subprocess.run(
        [
            GUIDELLM, "run", "--disable-console",
            "--backend", f"kind=openai_http,target={target},model={MODEL},request_format={route}",
            "--profile", "kind=concurrent,streams=2",
            "--constraint", f"kind=max_requests,count={len(PROMPTS)}",
            "--data", f"kind=json_file,path={prompts}",
            "--output", f"kind=json,path={report}",
        ],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    [benchmark] = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert (len(requests["successful"]), len(requests["errored"])) == (len(PROMPTS), 0)
    assert all(each["output_metrics"]["text_tokens"] for each in requests["successful"])

"""Flags of other servers are taken, or answered with the words of docs/peer-flags.md."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from deploy.local.__main__ import PROGRAM as SERVE
from shared.cli.peer_flag_table import PEER_FLAGS, PEER_VALUES, PeerValue
from shared.cli.peer_flags import markdown_page, translated
from shared.errors import ConfigError
from tests.deploy.local_stack import REPOSITORY
from worker.__main__ import PROGRAM as WORKER

SERVE_AS_IT_IS = dataclasses.replace(SERVE, takes_peer_flags=False)
DOC = REPOSITORY / "docs" / "coming-from.md"


def test_the_page_is_what_the_table_says() -> None:
    written = (REPOSITORY / "docs" / "peer-flags.md").read_text()
    assert markdown_page() == written, "run: python -m shared.cli.peer_flags > docs/peer-flags.md"


def test_what_is_named_exists() -> None:
    serve = SERVE.flags() | {"--nats-url"}
    for flag in PEER_FLAGS:
        named = [flag.ours] if flag.ours else re.findall(r"`?(--[a-z][a-z-]+)", flag.advice)
        assert set(named) <= serve, flag
        assert bool(flag.ours) != bool(flag.advice), flag
    for value in PEER_VALUES:
        named = [value.flag, *re.findall(r"`?(--[a-z][a-z-]+)", value.advice)]
        assert set(named) <= serve, value
        assert bool(value.ours) != bool(value.advice), value


def test_no_flag_stands_twice() -> None:
    names = [name for flag in PEER_FLAGS for name in flag.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("each", PEER_VALUES, ids=lambda each: f"{each.flag}-{each.values[0]}")
def test_a_value_of_theirs_is_none_of_ours_and_becomes_one(each: PeerValue) -> None:
    for value in each.values:
        with pytest.raises(ConfigError):
            SERVE_AS_IT_IS.bound(["M", each.flag, value])
    if each.ours:
        SERVE_AS_IT_IS.bound(["M", each.flag, each.ours])


def test_metrics_of_the_page_exist() -> None:
    told = set(re.findall(r"`(jetflock_\w+)`", DOC.read_text()))
    known = set(
        re.findall(r"`(jetflock_\w+)", (REPOSITORY / "docs" / "all-metrics.md").read_text())
    )
    assert told <= known


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["M", "--max-model-len", "512"], ["M", "--max-context-len", "512"]),
        (["--served-model-name=x"], ["--model-name=x"]),
        (["--tensor-parallel-size", "2"], ["--tp", "2"]),
        (["-c", "4096", "-np", "4"], ["--max-context-len", "4096", "--max-running", "4"]),
        (["-q", "fp8"], ["--quantization", "fp8"]),
        (["--quantization", "fp8"], ["--quantization", "fp8"]),
        (["--kv-cache-dtype", "fp8_e4m3"], ["--kv-dtype", "fp8"]),
        (["--kv-cache-dtype=fp8_e4m3", "M"], ["--kv-dtype=fp8", "M"]),
        (["--scheduling-policy", "priority"], ["--schedule-policy", "fcfs"]),
        (["--no-overlap", "half"], ["--no-overlap", "half"]),
        (["awq", "--port", "8001"], ["awq", "--port", "8001"]),
    ],
)
def test_what_means_the_same_is_taken(words: list[str], expected: list[str]) -> None:
    assert translated(words, SERVE.flags()) == expected


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--enable-lora"], r"In jetflock: adapters need no switch: --lora NAME=PATH"),
        (["-m", "x.gguf"], "In jetflock: MODEL stands without a flag: jetflock serve MODEL"),
        (["-ngl=99"], "--device cuda or cpu"),
        (["M", "--quantization", "awq"], "--quantization awq is .* leave the flag out"),
        (["-q=gptq"], "--quantization gptq is .* leave the flag out"),
        (["--dtype", "half"], "there is no float16: --dtype bfloat16, or auto"),
    ],
)
def test_what_means_something_else_is_answered(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        translated(words, SERVE.flags())


def test_our_own_flags_keep_their_meaning() -> None:
    for program in (SERVE, WORKER):
        flags = program.flags()
        for flag in flags:
            assert translated([flag], flags) == [flag]


@pytest.mark.e2e
def test_the_command_says_it_before_anything_starts() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jetflock", "serve", "--data-parallel-size", "2"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "jetflock serve: --data-parallel-size is a flag of vLLM, SGLang. In jetflock: --workers N "
        "starts N workers, each on a GPU of its own while there are enough\n"
    )


@pytest.mark.parametrize(
    ("config", "ours"),
    [
        (
            '{"model": "/m", "num_speculative_tokens": 3}',
            ["--draft-model", "/m", "--num-draft-tokens", "3"],
        ),
        (
            '{"method": "ngram", "prompt_lookup_max": 5}',
            ["--speculate", "ngram", "--max-ngram-len", "5"],
        ),
        ('{"method": "eagle3", "model": "/m"}', ["--draft-model", "/m"]),
        ('{"method": "deepseek_mtp"}', ["--speculate", "mtp"]),
        (
            '{"method": "medusa"}',
            "method must be draft_model, eagle3, mtp, ngram or suffix, not 'medusa'",
        ),
        ('{"draft_tensor_parallel_size": 2}', "draft_tensor_parallel_size is not supported"),
        ("model=/m", "is not JSON"),
        ("[]", "must be a JSON object"),
    ],
)
def test_what_vllm_says_of_guesses_is_taken(config: str, ours: list[str] | str) -> None:
    if isinstance(ours, str):
        with pytest.raises(ConfigError, match=ours):
            translated(["M", "--speculative-config", config])
        return
    assert translated(["M", "--speculative-config", config, "--host"]) == ["M", *ours, "--host"]
    assert translated([f"--speculative-config={config}"]) == ours

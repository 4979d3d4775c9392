"""`jetflock pull`, `list`, `rm` and `ps`: models of the hub on this disk, and what runs of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import pytest

from deploy.local.running_stack import RunningStack, announced
from jetflock.command_line.output import num_bytes_text
from jetflock.commands.ps import tree_memory_bytes
from tests.deploy.local_stack import REPOSITORY
from tests.forked_program import run_program
from tests.gguf_files import add_tokenizer, matrices_as, write_gguf
from tests.jetflock.local_hub import COMMIT, local_hub
from tests.mistral_files import write_mistral

pytestmark = pytest.mark.e2e

CHECKPOINT = REPOSITORY / "deploy" / "demo_model" / "checkpoint"
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One that can be served; one of another format; one whose weights are cut; GGUF files."""
    folder = tmp_path_factory.mktemp("repositories")
    found = {name: folder / name.replace("/", "-") for name in ("org/demo", "org/awq", "org/cut")}
    for each in found.values():
        shutil.copytree(CHECKPOINT, each)
    (found["org/demo"] / "README.md").write_text("nothing that is fetched")
    config = json.loads((CHECKPOINT / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "aqlm"}
    (found["org/awq"] / "config.json").write_text(json.dumps(config))
    with (found["org/cut"] / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 16)
    found["org/mistral"] = write_mistral(CHECKPOINT, folder / "org-mistral", {})
    found["org/gguf"] = folder / "org-gguf"
    found["org/gguf"].mkdir()
    for kind in ("BF16", "Q8_0"):
        write_gguf(
            CHECKPOINT,
            found["org/gguf"] / f"demo-{kind}.gguf",
            matrices_as(gguf.GGMLQuantizationType[kind]),
            metadata=add_tokenizer(CHECKPOINT, "smollm"),
        )
    return found


@pytest.fixture(scope="module")
def hub(repositories: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    with local_hub(repositories) as found:
        yield found


@pytest.fixture
def run(tmp_path: Path, hub: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, with a disk of its own: its client reads the environment at import."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    hub[1].clear()
    given = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub[0], "HF_HUB_DISABLE_XET": "1"}
    given["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def command(*argv: str) -> subprocess.CompletedProcess[str]:
        return run_program("jetflock", *argv, env={**os.environ, **given}, timeout_s=100.0)

    return command


def test_a_model_comes_is_listed_and_goes(run: Command, hub: tuple[str, list[str]]) -> None:
    done = run("pull", "org/demo")
    assert done.returncode == 0, done.stderr
    assert "serve it: jetflock serve org/demo" in done.stdout
    assert hub[1].count("model.safetensors") == 1

    [model] = json.loads(run("list", "--check", "--json").stdout)
    assert (model["model"], model["commit"], model["problem"]) == ("org/demo", COMMIT, None)
    assert model["num_bytes"] >= (CHECKPOINT / "model.safetensors").stat().st_size
    assert run("list").stdout.startswith("org/demo\t")
    assert "generate" in run("models", "org/demo").stdout

    url = "http://127.0.0.1:1"
    served = RunningStack(os.getpid(), url, "", "jf", "m", time.time(), model_path=model["path"])
    with announced(served):
        done = run("rm", "org/demo")
        assert done.returncode == 2
        assert f"served by pid {os.getpid()} at {url}" in done.stderr
        [shown] = json.loads(run("ps", "--json").stdout)
        assert shown["memory_bytes"] > 1 << 20
    assert run("rm", "org/demo").returncode == 0
    assert not Path(model["path"]).exists()
    assert json.loads(run("list", "--json").stdout) == []
    assert "'org/demo' is not on this machine" in run("rm", "org/demo").stderr


def test_a_gguf_file_is_named_after_its_repository(
    run: Command, hub: tuple[str, list[str]]
) -> None:
    done = run("pull", "org/gguf")
    assert done.returncode == 2
    assert "holds GGUF files; name one, as in org/gguf:demo-BF16.gguf" in done.stderr
    done = run("pull", "org/gguf:Q4_K_M")
    assert done.returncode == 2
    assert "org/gguf has no GGUF files of 'Q4_K_M'; it has demo-BF16.gguf, demo-Q8" in done.stderr
    assert hub[1] == []

    done = run("pull", "org/gguf:q8_0")
    assert done.returncode == 0, done.stderr
    assert "serve it: jetflock serve org/gguf:q8_0" in done.stdout
    assert hub[1] == ["demo-Q8_0.gguf"]
    assert "generate" in run("models", "org/gguf:Q8_0").stdout
    [listed] = json.loads(run("list", "--check", "--json").stdout)
    assert (listed["model"], listed["problem"]) == ("org/gguf", None)
    assert "jetflock pull org/gguf:BF16" in run("models", "org/gguf:BF16").stderr
    assert run("rm", "org/gguf").returncode == 0


def test_mistrals_own_layout_is_fetched_where_there_is_no_other(
    run: Command, hub: tuple[str, list[str]]
) -> None:
    done = run("pull", "org/mistral")
    assert done.returncode == 0, done.stderr
    assert "serve it: jetflock serve org/mistral" in done.stdout
    assert hub[1].count("consolidated.safetensors") == 1
    told = run("doctor", "org/mistral").stdout
    assert "MistralForCausalLM by our fused decoder" in told
    assert "generate" in run("models", "org/mistral").stdout


def test_what_cannot_be_served_is_told_before_its_weights_come(
    run: Command, hub: tuple[str, list[str]]
) -> None:
    done = run("pull", "org/awq")
    assert done.returncode == 2
    assert "quantised by aqlm are not supported" in done.stderr
    assert "its weights were not fetched" in done.stderr
    assert "model.safetensors" not in hub[1]
    done = run("pull", "org/cut")
    assert done.returncode == 2
    assert "model.safetensors is cut: it has 65536 bytes, its head says" in done.stderr
    problems = {each["model"]: each["problem"] for each in json.loads(run("list", "--json").stdout)}
    assert "no weights" in problems["org/awq"]
    assert "its head says" in problems["org/cut"]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("pull", "deploy"), "deploy is here: there is nothing to fetch"),
        (("pull", "llama3:8b"), "'llama3:8b' is no name of the hub: give owner/name"),
        (("pull", "org/nobody"), "cannot download 'org/nobody'"),
        (("rm", "deploy"), "deploy is a folder of yours"),
        (("models", "org/nobody"), "jetflock pull org/nobody fetches it"),
    ],
)
def test_a_wrong_name_is_told(run: Command, argv: tuple[str, ...], complaint: str) -> None:
    done = run(*argv)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_memory_of_a_tree_is_that_of_its_children_too() -> None:
    code = "import sys; x = b'x' * (64 << 20); print(flush=True); sys.stdin.read()"
    own = tree_memory_bytes(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        both = tree_memory_bytes(os.getpid())
        child.communicate()
    assert own is not None
    assert both is not None
    assert both - own > 48 << 20
    assert tree_memory_bytes(1 << 30) is None


def test_bytes_have_three_digits() -> None:
    shown = [num_bytes_text(each) for each in (0, 1023, 1024, 50 << 20, 3 << 40, 5000 << 40)]
    assert shown == ["0 B", "1023 B", "1.00 KiB", "50.0 MiB", "3.00 TiB", "5000 TiB"]

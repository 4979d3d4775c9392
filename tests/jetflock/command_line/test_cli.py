"""The `jetflock` command finds, suggests, and says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from jetflock.command_line.command_program import program_of
from jetflock.command_line.command_table import COMMANDS
from tests.deploy.local_stack import REPOSITORY
from tests.forked_program import run_program

pytestmark = pytest.mark.e2e


def run(*argv: str, columns: int = 200) -> subprocess.CompletedProcess[str]:
    return run_program("jetflock", *argv, env={"COLUMNS": str(columns), "PATH": "/usr/bin:/bin"})


def test_help_is_short_and_names_every_command() -> None:
    text = run("--help").stdout
    assert len(text.splitlines()) <= 40
    for name in (*COMMANDS, "version"):
        assert f" {name} " in text
    assert run().stdout == text


def test_version() -> None:
    assert run("version").stdout == run("--version").stdout == f"jetflock {version('jetflock')}\n"


def test_a_misspelt_command_gets_a_suggestion() -> None:
    done = run("srve")
    assert done.returncode == 2
    assert done.stderr == "jetflock: there is no command 'srve'; did you mean 'serve'?\n"


def test_a_wrong_flag_is_one_sentence_with_a_remedy() -> None:
    for argv, words in {
        ("serve", "--prot", "1"): "Unknown option: --prot. Did you mean --port?",
        ("serve", "--port", "x"): 'Invalid value for --port: unable to convert "x" into int.',
        ("admin", "drian", "x"): 'Unknown command "drian". Did you mean "drain"?',
        ("worker",): "Parameter MODEL requires an argument.",
        ("serve", "here", "there"): "Unexpected argument 'there'.",
    }.items():
        done = run(*argv)
        name = f"jetflock {argv[0]}"
        assert done.returncode == 2
        assert done.stderr.startswith(f"{name}: {words} ")
        assert done.stderr.endswith(f"{name} --help-all lists the flags.\n")


@pytest.mark.parametrize("name", ["serve", "frontend", "worker", "detok"])
def test_help_is_a_screenful_or_everything(name: str) -> None:
    short = run(name, "--help", columns=80).stdout
    assert len(short.splitlines()) <= 25
    assert "--nats-url" in short
    assert "--ack-wait-s" not in short
    everything = run(name, "--help-all", columns=80).stdout
    assert "\nNATS, limits and logs:\n" in everything
    [line] = [line for line in everything.splitlines() if "--ack-wait-s SECONDS" in line]
    assert line.endswith("[default 8; JETFLOCK_ACK_WAIT_S]")  # one line, however narrow
    for text in (short, everything):
        assert text.endswith("130 ended by Ctrl-C.\n")
        assert not set(text) & set("\x1b│╭─")


def test_every_command_explains_itself_in_a_screenful(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in COMMANDS.items():
        program_of(command).run(["--help"])
        text = capsys.readouterr().out
        assert text.startswith(f"Usage: jetflock {name}")
        assert len(text.splitlines()) <= 25, name
        assert not set(text) & set("\x1b│╭─")


def test_serve_has_the_flags_of_all_roles_but_what_it_sets_itself() -> None:
    everything = run("serve", "--help-all").stdout
    for word in ("--workers", "--max-running", "JETFLOCK_PORT", "\nFrontend:\n", "\nEngine:\n"):
        assert word in everything
    assert "--worker-id" not in everything


COMPLETE = """
source /dev/stdin
COMP_WORDS=({words}) COMP_CWORD={last}
_jetflock
echo "${{COMPREPLY[*]}}"
"""


def test_the_shell_completes_commands_flags_and_values() -> None:
    script = run("completion", "bash").stdout
    for words, expected in {
        ("fron",): "frontend",
        ("worker", "--hang-t"): "--hang-timeout-s",
        ("admin", "dr"): "drain",
        ("admin", "pause", "--mode", "f"): "finish freeze",
    }.items():
        program = COMPLETE.format(words=" ".join(["jetflock", *words]), last=len(words))
        done = subprocess.run(
            ["bash", "-c", program], input=script, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == expected.split()


def test_completion_and_help_do_not_import_torch() -> None:
    script = (
        "import sys; from jetflock.commands.completion import command_tree; "
        "command_tree().generate_completion(prog_name='jetflock', shell='bash'); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.check_output([sys.executable, "-c", script], cwd=REPOSITORY, text=True)
    assert done == "False\n"


def test_a_missing_library_is_one_sentence() -> None:
    script = "import sys; sys.modules['starlette'] = None; from jetflock import cli; "
    done = subprocess.run(
        [sys.executable, "-c", script + "cli.run_command('frontend', [])"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "jetflock frontend needs the Python package 'starlette', which is not installed: "
        f"{sys.executable} -m pip install -e '{REPOSITORY}[frontend]'\n"
    )


def test_importing_the_package_is_cheap() -> None:
    script = (
        "import sys, jetflock; print([m for m in ('nats', 'torch', 'shared') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("module", "late"), [("deploy.local.__main__", "httpx"), ("jetflock.commands.models", "rich")]
)
def test_what_a_start_does_not_need_is_imported_late(module: str, late: str) -> None:
    script = f"import sys, {module}; print({late!r} in sys.modules)"
    done = subprocess.check_output([sys.executable, "-c", script], cwd=REPOSITORY, text=True)
    assert done == "False\n"


def test_a_reader_that_has_seen_enough_hears_no_complaint() -> None:
    for argv in (["--help"], ["config", "show", "serve"]):
        read_end, write_end = os.pipe()
        os.close(read_end)
        with os.fdopen(write_end, "wb") as closed:
            done = subprocess.run(
                [sys.executable, "-m", "jetflock", *argv],
                cwd=REPOSITORY,
                stdout=closed,
                stderr=subprocess.PIPE,
                check=False,
            )
        assert (done.returncode, done.stderr) == (1, b"")


def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "jetflock", "config", "show", "detok"],
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"jetflock: cannot write: No space left on device\n"

"""The `jetflock` command: finds what was asked for, and imports it only then."""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import dataclass
from importlib.metadata import version as distribution_version
from pathlib import Path

import cyclopts


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command that is a program of its own: its flags are its own business."""

    module: str  # run as `python -m` would
    summary: str
    group: cyclopts.Group
    extra: str  # what to install when it cannot be imported


START = cyclopts.Group("Start here", sort_key=0)
ROLES = cyclopts.Group("One role alone", sort_key=1)
UPKEEP = cyclopts.Group("Upkeep", sort_key=2)
ALSO = cyclopts.Group("Also", sort_key=3)

COMMANDS = {
    "serve": Command("deploy.local", "Run everything on this machine.", START, "serve"),
    "chat": Command("jetflock.chat", "Talk to a model.", START, "serve"),
    "autoscale": Command("deploy.autoscale", "Workers by load.", ROLES, "serve"),
    "frontend": Command("frontend", "The HTTP and NATS API.", ROLES, "frontend"),
    "worker": Command("worker", "A worker that runs a model.", ROLES, "worker"),
    "detok": Command("detok", "The detokenizer: token ids become text.", ROLES, "detok"),
    "batch": Command("jetflock.batch", "Run a file of requests.", ALSO, "frontend"),
    "bench": Command("jetflock.bench", "Load on an OpenAI-compatible URL.", ALSO, "bench"),
    "admin": Command("jetflock.admin", "Pause, drain, abort: a running service.", UPKEEP, "serve"),
    "doctor": Command("jetflock.doctor", "What is wrong, and the remedy.", UPKEEP, "serve"),
    "setup": Command("jetflock.setup", "Make streams and consumers.", UPKEEP, "worker"),
    "nats-users": Command("deploy.nats", "NATS users with least rights.", UPKEEP, "frontend"),
    "events": Command("jetflock.events", "What happens to the pools.", UPKEEP, "serve"),
    "dead": Command("jetflock.dead", "Requests that were given up.", UPKEEP, "serve"),
}


def main() -> None:
    """Entry point of the command."""
    find_components()
    argv = sys.argv[1:]
    if argv and argv[0] in COMMANDS:
        run_command(argv[0], argv[1:])
    else:
        build_app()(argv)


def find_components() -> None:
    """Installed from a wheel, the roles lie inside this package; child processes find them too."""
    components = Path(__file__).parent / "components"
    if components.is_dir():
        sys.path.insert(0, str(components))
        paths = [str(components), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def run_command(name: str, argv: list[str]) -> None:
    """Run a command's program with `argv`; ends the process when a part is not installed."""
    command = COMMANDS[name]
    sys.argv = [f"jetflock {name}", *argv]
    try:
        runpy.run_module(command.module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as exc:
        package = (exc.name or "").split(".")[0]
        if package in ("", "deploy", "shared", *COMMANDS):
            raise
        sys.stderr.write(
            f"jetflock {name} needs the Python package {package!r}, which is not installed: "
            f"pip install 'jetflock[{command.extra}]'\n"
        )
        raise SystemExit(2) from None


def build_app() -> cyclopts.App:
    """The help of the whole command, `version`, and a suggestion for a word it does not know."""
    app = cyclopts.App(
        name="jetflock",
        help="Serves large language models from a queue. Each command explains itself: "
        "jetflock COMMAND --help.",
        version=show_version,
        result_action="return_value",
    )
    app["--help"].group = app["--version"].group = ALSO
    for name, command in COMMANDS.items():
        app.command(cyclopts.App(name=name, help=command.summary, group=command.group))
    app.command(cyclopts.App(name="version", help="Print the version.", group=ALSO))
    app["version"].default(print_version)
    return app


def show_version() -> str:
    """One line."""
    return f"jetflock {distribution_version('jetflock')}"


def print_version() -> None:
    """The `version` command."""
    sys.stdout.write(show_version() + "\n")


if __name__ == "__main__":
    main()

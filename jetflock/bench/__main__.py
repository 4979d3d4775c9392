"""`jetflock bench`, or `python -m jetflock.bench`: measures a running service."""

from __future__ import annotations

import sys

from jetflock.bench.serve import serve
from shared.config import build_app, config_file
from shared.errors import JetflockError

_NAME = "jetflock bench"
_SUMMARY = """\
Measure a running service.

Each flag is also a variable (JETFLOCK_URL), and a key of the YAML file named by --config FILE."""


def main(argv: list[str] | None = None) -> None:
    """Entry point: an error of ours is one sentence and its status."""
    argv = sys.argv[1:] if argv is None else argv
    app = build_app(_NAME, _SUMMARY, config_file(argv))
    app.command(serve, name="serve")
    try:
        app(argv)
    except JetflockError as exc:
        sys.stderr.write(f"{_NAME}: {exc}\n")
        raise SystemExit(exc.exit_status) from exc


if __name__ == "__main__":
    main()

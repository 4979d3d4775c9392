"""`python -m deploy.grafana > deploy/grafana/jetflock.json`: the dashboard, to be imported."""

from __future__ import annotations

import json
import sys

from deploy.grafana.dashboard import dashboard


def main() -> None:
    """Print it."""
    sys.stdout.write(json.dumps(dashboard(), indent=1) + "\n")


if __name__ == "__main__":
    main()

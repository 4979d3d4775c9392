"""`--doc-page PAGE` tries the commands of one page alone."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--doc-page", action="append", default=[], help="try the commands of this page alone"
    )


@pytest.fixture
def doc_pages(request: pytest.FixtureRequest) -> list[Path]:
    """None named: all of them. The option is unknown where this folder was not named."""
    return [Path(page).resolve() for page in request.config.getoption("--doc-page", default=[])]

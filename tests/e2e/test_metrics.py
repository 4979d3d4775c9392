"""What dashboard, alerts and docs say of metrics is true of a scrape of all roles."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import promql_parser as promql
import pytest
import yaml

from deploy.grafana.dashboard import dashboard
from tests.deploy.crd_schemas import PROMETHEUS_RULE
from tests.e2e.metrics_stack import COMMON, Known, known_metrics, page, running_roles
from tests.e2e.role_stack import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

RULES = REPOSITORY / "deploy/prometheus/rules.yaml"
DASHBOARD = REPOSITORY / "deploy/grafana/jetflock.json"
DOC = REPOSITORY / "docs/all-metrics.md"
FROM_THE_SCRAPER = {"namespace", "instance", "job"}
UNITS = ("_seconds", "_bytes", "_ratio", "_tokens", "_info", "_perc")
_VARIABLE = re.compile(r"\$(namespace|instance|model_name)\b")


@functools.cache
def known() -> dict[str, Known]:
    """One scrape for all tests of this file."""

    async def look() -> dict[str, Known]:
        with tempfile.TemporaryDirectory() as folder:
            async with running_roles(Path(folder)) as urls:
                return await known_metrics(urls)

    return asyncio.run(look())


def panel_queries() -> Iterator[tuple[str, str]]:
    """Title and query, with values in the place of Grafana's variables."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$__rate_interval", "5m")
            yield panel["title"], _VARIABLE.sub(".*", expr)


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found


def parts(node: Any) -> Iterator[Any]:
    """A parsed query and everything in it."""
    yield node
    for name in ("expr", "lhs", "rhs", "vs", "vector_selector"):
        inner = getattr(node, name, None)
        if inner is not None and not isinstance(inner, str):
            yield from parts(inner)
    for inner in getattr(node, "args", None) or ():
        yield from parts(inner)


def check_query(expr: str) -> None:
    """It can be parsed, and asks for what there is."""
    labels_of: set[str] = set()
    grouped: set[str] = set()
    num_selectors = 0
    for part in parts(promql.parse(expr)):
        if isinstance(part, promql.VectorSelector):
            num_selectors += 1
            [metric] = [each for each in known().values() if part.name in each.samples]
            own = metric.labels | ({"le"} if metric.bounds else set())
            asked = {matcher.name for matcher in part.matchers.matchers}
            assert asked <= own | FROM_THE_SCRAPER, f"{part.name} has no {asked - own}"
            for matcher in part.matchers.matchers:
                if matcher.name == "le":
                    assert matcher.value in metric.bounds, expr
            labels_of |= own | FROM_THE_SCRAPER
        if isinstance(part, promql.AggregateExpr) and part.modifier is not None:
            grouped |= set(part.modifier.labels)
    assert num_selectors, expr
    assert grouped <= labels_of, f"{expr} groups by {grouped - labels_of}"


def test_every_panel_shows_what_there_is() -> None:
    titles = []
    for title, expr in panel_queries():
        titles.append(title)
        try:
            check_query(expr)
        except (AssertionError, ValueError) as exc:
            raise AssertionError(f"{title}: {expr}") from exc
    assert len(titles) > 60
    with pytest.raises(ValueError, match="not enough values"):
        check_query("sum(jetflock_no_such_metric)")
    with pytest.raises(AssertionError, match="has no"):
        check_query('jetflock_detok_lag{model_name="x"}')


def test_every_alert_watches_what_there_is() -> None:
    for rule in rules():
        check_query(rule["expr"])
        labels = re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))
        by = re.search(r"by \(([^)]*)\)", rule["expr"])
        assert by is not None
        assert set(labels) <= {label.strip() for label in by[1].split(",")}, rule["alert"]
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)


def test_rules_and_dashboard_have_their_form() -> None:
    spec = yaml.safe_load(RULES.read_text())
    schema = PROMETHEUS_RULE["properties"]["spec"]
    jsonschema.validate(spec, schema)
    assert json.loads(DASHBOARD.read_text()) == dashboard(), (
        "python -m deploy.grafana > deploy/grafana/jetflock.json"
    )
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    names = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert names == {"datasource", "namespace", "model_name", "instance"}


def test_names_follow_the_conventions() -> None:
    for name, metric in known().items():
        if name.startswith(COMMON):
            continue
        assert re.fullmatch(r"jetflock_[a-z][a-z0-9_]*[a-z0-9]", name), name
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_ms")), name
        assert metric.text.endswith("."), name
        if metric.kind == "histogram":
            assert name.endswith(UNITS), name
        for word in ("age", "wait", "latency", "time", "lag", "stall"):
            if (
                f"_{word}_" in f"{name}_"
                and metric.kind != "counter"
                and name != "jetflock_detok_lag"
            ):
                assert name.endswith("_seconds"), name


def test_the_page_in_the_docs_is_what_roles_tell() -> None:
    assert DOC.read_text() == page(known()), "run: python -m tests.e2e.metrics_stack"

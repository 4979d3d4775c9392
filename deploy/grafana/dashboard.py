"""The dashboard as Grafana reads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from deploy.grafana.panels import ROWS, Panel, Row

UID = "jetflock"
_WIDTH, _HEIGHT, _NUM_COLUMNS = 8, 7, 3
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# A label that is not there is empty, which `.*` matches: outside of Kubernetes no one has a
# namespace.
_OF_INSTANCES = 'namespace=~"$namespace", instance=~"$instance"'
_SELECTORS = {"$M": f'{_OF_INSTANCES}, model_name=~"$model_name"', "$I": _OF_INSTANCES}

Json = dict[str, Any]


def dashboard() -> Json:
    """The dashboard, with variables for the data source, namespaces, models and instances."""
    ids = itertools.count(1)
    return {
        "uid": UID,
        "title": "jetflock",
        "tags": ["jetflock", "llm"],
        "schemaVersion": 41,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_panels(ids)),
    }


def _variables() -> list[Json]:
    def of_label(name: str, label: str, metric: str) -> Json:
        return {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": f"label_values({metric}, {label})", "refId": name},
            "definition": f"label_values({metric}, {label})",
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }

    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        of_label("namespace", "namespace", "jetflock_build_info"),
        of_label("model_name", "model_name", "jetflock_frontend_workers"),
        of_label("instance", "instance", "jetflock_build_info"),
    ]


def _panels(ids: Iterator[int]) -> Iterator[Json]:
    y = 0
    for row in ROWS:
        yield _row(row, next(ids), y)
        y += 1
        for idx, panel in enumerate(row.panels):
            place = {
                "x": idx % _NUM_COLUMNS * _WIDTH,
                "y": y + idx // _NUM_COLUMNS * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            }
            yield _panel(panel, next(ids), place)
        y += -(-len(row.panels) // _NUM_COLUMNS) * _HEIGHT


def _row(row: Row, panel_id: int, y: int) -> Json:
    place = {"x": 0, "y": y, "w": _WIDTH * _NUM_COLUMNS, "h": 1}
    return {
        "id": panel_id,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": place,
        "panels": [],
    }


def _panel(panel: Panel, panel_id: int, place: Json) -> Json:
    return {
        "id": panel_id,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 8}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + idx),
                "datasource": _SOURCE,
                "expr": _with_selectors(query.expr),
                "legendFormat": query.legend,
            }
            for idx, query in enumerate(panel.queries)
        ],
    }


def _with_selectors(expr: str) -> str:
    for name, selectors in _SELECTORS.items():
        expr = expr.replace(name, selectors)
    return expr

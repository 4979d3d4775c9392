"""Shapes of the custom resources that the chart renders.

Written by hand from the documentation of KEDA 2.17, the Prometheus operator and the Gateway API: no
package registry carries their schemas. They hold exactly the fields that the chart uses, so that a
misspelt or misplaced one is found; they do not prove that a cluster's version takes the object.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1}
_WHOLE: Schema = {"type": "integer", "minimum": 0}
_TEXT_MAP: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


def _array(items: Schema, **more: int) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, **more}


def _resource(api_version: str, kind: str, spec: Schema) -> Schema:
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=_object(("name", "labels"), name=_TEXT, labels=_TEXT_MAP),
        spec=spec,
    )


_NATS_TRIGGER = _object(
    ("type", "name", "metadata"),
    type={"const": "nats-jetstream"},
    name={"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]*$"},  # a variable of the formula
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=_object(
        ("natsServerMonitoringEndpoint", "account", "stream", "consumer"),
        natsServerMonitoringEndpoint={"type": "string", "pattern": "^[^/:]+:[0-9]+$"},
        account=_TEXT,
        stream=_TEXT,
        consumer=_TEXT,
        lagThreshold={"type": "string", "pattern": "^[0-9]+$"},
        activationLagThreshold={"type": "string", "pattern": "^[0-9]+$"},
    ),
)

SCALED_OBJECT = _resource(
    "keda.sh/v1alpha1",
    "ScaledObject",
    _object(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=_object(("name",), apiVersion=_TEXT, kind=_TEXT, name=_TEXT),
        pollingInterval=_WHOLE,
        cooldownPeriod=_WHOLE,
        initialCooldownPeriod=_WHOLE,
        minReplicaCount=_WHOLE,
        maxReplicaCount=_WHOLE,
        fallback=_object(
            ("failureThreshold", "replicas"), failureThreshold=_WHOLE, replicas=_WHOLE
        ),
        advanced=_object(
            horizontalPodAutoscalerConfig=_object(
                behavior=_object(scaleDown=_object(stabilizationWindowSeconds=_WHOLE))
            ),
            scalingModifiers=_object(
                ("formula", "target"),
                formula=_TEXT,
                target={"type": "string", "pattern": "^[0-9.]+$"},
                activationTarget={"type": "string", "pattern": "^[0-9.]+$"},
                metricType={"enum": ["AverageValue", "Value"]},
            ),
        ),
        triggers=_array(_NATS_TRIGGER),
    ),
)

POD_MONITOR = _resource(
    "monitoring.coreos.com/v1",
    "PodMonitor",
    _object(
        ("selector", "podMetricsEndpoints"),
        selector=_object(("matchLabels",), matchLabels=_TEXT_MAP),
        podTargetLabels=_array(_TEXT),
        podMetricsEndpoints=_array(
            _object(
                ("port",),
                port=_TEXT,
                path=_TEXT,
                interval={"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                authorization=_object(
                    ("credentials",), credentials=_object(("name", "key"), name=_TEXT, key=_TEXT)
                ),
            )
        ),
    ),
)

PROMETHEUS_RULE = _resource(
    "monitoring.coreos.com/v1",
    "PrometheusRule",
    _object(
        ("groups",),
        groups=_array(
            _object(
                ("name", "rules"),
                name=_TEXT,
                rules=_array(
                    _object(
                        ("alert", "expr", "labels", "annotations"),
                        alert={"type": "string", "pattern": "^Jetflock[A-Z][A-Za-z]+$"},
                        expr=_TEXT,
                        **{"for": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}},
                        labels=_TEXT_MAP,
                        annotations=_object(
                            ("summary", "description"), summary=_TEXT, description=_TEXT
                        ),
                    )
                ),
            )
        ),
    ),
)

HTTP_ROUTE = _resource(
    "gateway.networking.k8s.io/v1",
    "HTTPRoute",
    _object(
        ("parentRefs",),
        parentRefs=_array(_object(("name",), name=_TEXT, namespace=_TEXT, sectionName=_TEXT)),
        hostnames=_array(_TEXT),
        rules=_array(
            _object(
                backendRefs=_array(_object(("name", "port"), name=_TEXT, port=_WHOLE)),
                timeouts=_object(
                    request={"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms))+$"}
                ),
            )
        ),
    ),
)

CRD_SCHEMAS = {
    "ScaledObject": SCALED_OBJECT,
    "PodMonitor": POD_MONITOR,
    "PrometheusRule": PROMETHEUS_RULE,
    "HTTPRoute": HTTP_ROUTE,
}

"""Value sets with which the Helm chart is rendered in tests."""

from __future__ import annotations

from tests.deploy.helm_chart import Values

EXTERNAL_NATS: Values = {
    "nats": {
        "enabled": False,
        "url": "nats://broker.example:4222",
        "monitoringEndpoint": "broker.example:8222",
    }
}

KEDA: Values = {
    "worker": {"autoscaling": {"type": "keda", "minReplicas": 0, "maxReplicas": 8}},
    "models": [
        {"name": "chat", "model": "meta-llama/Llama-3.2-1B-Instruct"},
        {"name": "story", "model": "/models/Stories_2", "autoscaling": {"targetRequests": 4}},
    ],
}

GPU: Values = {
    "models": [
        {
            "name": "large",
            "model": "org/large",
            "gpus": 2,
            "runtimeClassName": "nvidia",
            "replicas": 3,
            "nodeSelector": {"nvidia.com/gpu.product": "H100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "resources": {"requests": {"cpu": 8}, "limits": {"memory": "64Gi"}},
            "cache": {"type": "pvc", "size": "200Gi", "storageClassName": "fast"},
            "shm": {"sizeLimit": "16Gi"},
            "podAnnotations": {"karpenter.sh/do-not-disrupt": "true"},
        }
    ]
}

# Prompts are computed apart from tokens; each role is scaled by its own load.
ROLES_APART: Values = {
    "worker": {
        "kvTransferPort": 9092,
        "extraArgs": ["--kv-disk-dir=/dev/shm/kv"],
        "autoscaling": {"type": "hpa"},
    },
    "models": [
        {"name": "prompts", "model": "org/large", "role": "prefill"},
        {"name": "tokens", "model": "org/large", "role": "decode", "gpus": 1},
    ],
}

_SPREAD = [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway"}]  # fmt: skip
_POD: Values = {
    "extraArgs": ["--log-level=debug"],
    "extraEnv": [
        {"name": "PLAIN", "value": "1"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ],
    "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    "podLabels": {"team": "llm"},
    "nodeSelector": {"pool": "serving"},
    "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app": "x"}},
                    },
                }
            ]
        }
    },
    "topologySpreadConstraints": _SPREAD,
    "priorityClassName": "high",
}

EVERYTHING: Values = {
    "image": {"repository": "example/jetflock", "tag": "1.2.3", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "serviceAccount": {"name": "runner", "annotations": {"a": "b"}},
    "streams": {"prefix": "blue", "partitions": 32, "replicas": 3},
    "nats": {
        "enabled": False,
        "url": "tls://broker.example:4222",
        "monitoringEndpoint": "broker.example:8222",
        "account": "LLM",
        "auth": {
            "type": "creds",
            "frontend": "nats-frontend",
            "service": "nats-service",
            "eraser": "nats-eraser",
            "detok": "nats-detok",
            "worker": "nats-worker",
            "setup": "nats-setup",
        },
        "callers": "users",
        "tls": {"existingSecret": "nats-tls", "clientCertificate": True},
    },
    "frontend": {
        **_POD,
        "autoscaling": {"enabled": True, "maxReplicas": 20},
        "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"lb": "internal"}},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"},
            "hosts": [{"host": "llm.example", "path": "/"}],
            "tls": [{"hosts": ["llm.example"], "secretName": "llm-tls"}],
        },
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "gateway", "namespace": "infra"}],
            "hostnames": ["llm.example"],
        },
        "apiKeys": {"existingSecret": "api-keys"},
    },
    "detok": {**_POD, "autoscaling": {"enabled": True, "maxReplicas": 12}},
    "worker": {
        **_POD,
        "maxContextLen": 8192,
        "quantization": "int8",
        "kvDtype": "int8",
        "cpuActivations": "int8",
        "kvTransferPort": 9092,
        "extraArgs": [*_POD["extraArgs"], "--kv-disk-dir=/dev/shm/kv"],
        "registerModel": True,
        "hubToken": {"existingSecret": "hub"},
        "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        "extraVolumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    },
    "models": [
        {
            "name": "scaled",
            "model": "org/scaled",
            "autoscaling": {"type": "keda", "minReplicas": 0, "fallbackReplicas": 2},
            "cache": {"type": "pvc", "existingClaim": "claim"},
        },
        {
            "name": "metered",
            "model": "/models/metered",
            "servedName": "Metered: the 2nd",
            "autoscaling": {"type": "hpa", "minReplicas": 2, "maxReplicas": 6},
            "cache": {"type": "hostPath", "hostPath": "/var/cache/models"},
        },
        {
            "name": "fixed",
            "model": "/models/fixed",
            "replicas": 5,
            "gpus": 1,
            "cache": {"type": "emptyDir", "sizeLimit": "20Gi"},
            "pdb": {"enabled": False},
        },
    ],
    "monitoring": {
        "podMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "bearerTokenSecret": {"name": "metrics-key", "key": "token"},
        },
        "dashboard": {"enabled": True, "labels": {"grafana_dashboard": "1"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "networkPolicy": {
        "enabled": True,
        "frontendFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        "egress": [{"ports": [{"protocol": "TCP", "port": 4222}]}],
    },
}

CASES: dict[str, Values] = {
    "default": {},
    "external_nats": EXTERNAL_NATS,
    "nats_cluster": {
        "streams": {"replicas": 3},
        "nats": {"config": {"cluster": {"enabled": True, "replicas": 3}}},
    },
    "gpu": GPU,
    "keda": KEDA,
    "roles": ROLES_APART,
    "everything": EVERYTHING,
    "no_models": {"models": []},
}

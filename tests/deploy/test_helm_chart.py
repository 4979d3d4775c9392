"""The Helm chart renders objects that Kubernetes takes, and that say what the roles read."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tomllib
from collections.abc import Callable
from typing import Annotated, Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.grafana.dashboard import dashboard
from detok.config import DetokConfig
from frontend.config import FrontendConfig
from jetflock.commands import setup
from jetflock.commands.setup import SetupConfig
from shared.cli.program import Program
from shared.cluster import open_cluster
from shared.config import FLAT, ClusterConfig
from shared.status.health import LIVE_PATH, READY_PATH
from shared.subjects import Subjects, pool_slug
from tests.deploy.chart_values import CASES, EVERYTHING, EXTERNAL_NATS, GPU, KEDA, ROLES_APART
from tests.deploy.crd_schemas import CRD_SCHEMAS
from tests.deploy.helm_chart import HelmChart, Manifest, Rendered, Values, env_of
from tests.deploy.local_stack import REPOSITORY
from tests.nats_server import NatsServer
from worker.config import WorkerConfig

OLDEST, NEWEST = "1.27", "1.37"  # Chart.yaml names the oldest


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> HelmChart:
    return HelmChart(tmp_path_factory.mktemp("chart"))


def check_manifest(manifest: Manifest, version: str) -> None:
    schema = CRD_SCHEMAS.get(manifest["kind"])
    if schema is None:
        kubernetes_validate.validate(manifest, version, strict=True)
    else:
        jsonschema.validate(manifest, schema)


@pytest.mark.parametrize(
    ("case", "version"), [*((case, NEWEST) for case in CASES), ("everything", OLDEST)]
)
def test_every_object_is_valid(chart: HelmChart, case: str, version: str) -> None:
    rendered = chart.render(CASES[case])
    for manifest in rendered.manifests:
        check_manifest(manifest, version)
    names = [(item["kind"], item["metadata"]["name"]) for item in rendered.manifests]
    assert len(set(names)) == len(names)


def test_an_invalid_object_is_noticed(chart: HelmChart) -> None:
    deployment = chart.render().of_kind("Deployment")[0]
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullpolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagePullpolicy"):
        check_manifest(deployment, NEWEST)
    scaled = chart.render(KEDA).of_kind("ScaledObject")[0]
    scaled["spec"]["minReplicas"] = 0
    with pytest.raises(jsonschema.ValidationError, match="minReplicas"):
        check_manifest(scaled, NEWEST)


@pytest.mark.parametrize("case", CASES)
def test_lint_finds_nothing(chart: HelmChart, case: str) -> None:
    assert chart.lint(CASES[case]) == []


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 3},
        {"frontend": {"replica": 3}},
        {"frontend": {"resources": {"limit": {}}}},
        {"models": [{"name": "a", "model": "b", "replica": 1}]},
        {"models": [{"name": "a"}]},
        {"models": [{"name": "A b", "model": "b"}]},
        {"models": [{"name": "a", "model": "b", "autoscaling": {"type": "vpa"}}]},
        {"nats": {"urls": "nats://a:4222"}},
        {"nats": {"enabled": False, "url": "broker"}},
        {"nats": {"auth": {"type": "token"}}},
        {"streams": {"replicas": 2}},
        {"streams": {"prefix": "a.b"}},
        {"queue": {"consumers": []}},
        {"frontend": {"service": {"port": "http"}}},
    ],
)
def test_unknown_or_impossible_values_are_refused(chart: HelmChart, values: Values) -> None:
    from helm_python.errors import HelmValuesError  # late: as in helm_chart.py

    with pytest.raises(HelmValuesError):
        chart.render(values)


def a_model(**changes: Any) -> Values:
    return {"models": [{"name": "a", "model": "b/c", **changes}]}


def bundled_nats(**config: Values) -> Values:
    return {"nats": {"config": config}}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"nats": {"enabled": False}}, "nats.url is empty"),
        ({"nats": {"url": "nats://a:4222"}}, "choose one"),
        ({"streams": {"replicas": 3}}, "gives 1 server"),
        (bundled_nats(cluster={"enabled": True, "replicas": 3}), "set streams.replicas to 3"),
        (bundled_nats(cluster={"enabled": True}), "gives 3 servers"),
        (bundled_nats(jetstream={"fileStore": {"pvc": {"size": "1Gi"}}}), "may take 15488 Mi"),
        (bundled_nats(jetstream={"fileStore": {"pvc": {"size": "16G"}}}), "pvc.size is 16G"),
        (bundled_nats(jetstream={"fileStore": {"maxSize": "15487Mi"}}), "maxSize is 15487Mi"),
        (bundled_nats(jetstream={"fileStore": {"pvc": {"size": "much"}}}), '"much" is no quantity'),
        ({"streams": {"logMaxBytes": 20 << 30}}, "may take 27776 Mi"),
        ({"detok": {"autoscaling": {"enabled": True, "minReplicas": 9}}}, "maxReplicas = 8"),
        (
            {"streams": {"partitions": 4}, "detok": {"autoscaling": {"enabled": True}}},
            "streams.partitions = 4",
        ),
        ({"frontend": {"terminationGracePeriodSeconds": 40}}, "= 40: else streams are cut"),
        ({"frontend": {"autoscaling": {"enabled": True, "minReplicas": 11}}}, "maxReplicas = 10"),
        ({"frontend": {"ingress": {"enabled": True}}}, "hosts is empty"),
        ({"frontend": {"httpRoute": {"enabled": True}}}, "names no Gateway"),
        ({"models": a_model()["models"] * 2}, 'two have the name "a"'),
        (
            {"models": [{"name": "a", "model": "x"}, {"name": "b", "model": "/y/x"}]},
            'both served as "x"',
        ),
        (a_model(shutdownTimeoutSeconds=55), "+ 5 = 60: else requests are not handed over"),
        (a_model(autoscaling={"minReplicas": 9}), "above maxReplicas = 4"),
        (a_model(autoscaling={"type": "hpa", "minReplicas": 0}), "does not scale to zero"),
        (a_model(role="decode", autoscaling={"type": "keda"}), "role decode are scaled by hpa"),
        (
            {"setup": {"enabled": False}, **a_model(autoscaling={"type": "keda"})},
            "missing consumer",
        ),
        (
            {"nats": {"enabled": False, "url": "nats://a:1"}}
            | a_model(autoscaling={"type": "keda"}),
            "nats.monitoringEndpoint",
        ),
        (
            {"nats": {"config": {"monitor": {"enabled": False}}}}
            | a_model(autoscaling={"type": "keda"}),
            "monitor.enabled must be true",
        ),
        (
            {"nats": {"auth": {"worker": "w", "setup": "s"}}} | a_model(),
            "workers may not write model cards",
        ),
        ({"nats": {"callers": "users"}}, "nats.callers is users"),
        ({"nats": {"auth": {"frontend": "f", "setup": "s"}}}, "nats.auth.service"),
        ({"nats": {"auth": {"frontend": "f", "service": "s"}}}, "nats.auth.eraser"),
        (a_model(cache={"type": "hostPath"}), "cache.hostPath is empty"),
        (a_model(cache={"type": "pvc"}, registerModel=True), "existingClaim"),
        (
            bundled_nats(jetstream={"fileStore": {"pvc": {"size": "15488Mi"}}})
            | {"streams": {"billsTtlSeconds": 60}},
            "streams may take 16512 Mi",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(
    chart: HelmChart, values: Values, sentence: str
) -> None:
    from helm_python.errors import HelmError

    with pytest.raises(HelmError) as refused:
        chart.render(values)
    assert sentence in str(refused.value).replace('\\"', '"')


@pytest.mark.parametrize(
    "values",
    [
        bundled_nats(jetstream={"fileStore": {"pvc": {"size": "15488Mi"}}}),
        bundled_nats(jetstream={"fileStore": {"pvc": {"size": "0.016Ti"}}}),
        bundled_nats(jetstream={"fileStore": {"enabled": False, "pvc": {"size": "1Gi"}}}),
        bundled_nats(jetstream={"fileStore": {"pvc": {"enabled": False, "size": "1Gi"}}}),
        bundled_nats(jetstream={"fileStore": {"pvc": {"size": "1Gi"}}})
        | {
            "streams": {
                "logMaxBytes": 1 << 29, "queueMaxBytes": 1 << 27, "resultsMaxBytes": 1 << 26,
                "responseStoreBytes": 1 << 26, "deadMaxBytes": 1 << 26, "filesMaxBytes": 1 << 24,
                "objectsMaxBytes": 1 << 24, "keysMaxBytes": 1 << 22,
            }
        },
        {"nats": EXTERNAL_NATS["nats"] | {"config": {"cluster": {"enabled": True}}}},
    ],
)  # fmt: skip
def test_a_volume_that_holds_all_streams_is_taken(chart: HelmChart, values: Values) -> None:
    assert chart.render(values).of_kind("Deployment")


# Names


def scaled_models(names: list[str]) -> Values:
    return {
        "models": [
            {"name": f"m{idx}", "model": "org/name", "servedName": name}
            | {"autoscaling": {"type": "keda"}}
            for idx, name in enumerate(names)
        ]
    }


def check_names(rendered: Rendered, prefix: str, served_names: list[str]) -> None:
    """KEDA reads the streams and consumers that the roles use."""
    subjects = Subjects(prefix)
    scaled = rendered.of_kind("ScaledObject")
    assert len(scaled) == len(served_names)
    for manifest, name in zip(scaled, served_names, strict=True):
        triggers = manifest["spec"]["triggers"]
        assert {item["metadata"]["stream"] for item in triggers} == {subjects.requests_stream}
        consumers = [item["metadata"]["consumer"] for item in triggers]
        assert consumers == subjects.consumers(pool_slug(name))
        assert manifest["metadata"]["labels"]["jetflock/pool"] == pool_slug(name)
        formula = manifest["spec"]["advanced"]["scalingModifiers"]["formula"]
        assert formula == " + ".join(item["name"] for item in triggers)


MODEL_NAMES = [
    "jetflock-demo",
    "meta-llama/Llama-3.2-1B-Instruct",
    "Qwen/Qwen3-0.6B",
    "UPPER lower_under.dot",
    "--dashes--",
    "a" * 39 + "/" + "b" * 30,
    "模型",
    "\N{KELVIN SIGN}\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}x",  # they lower to ASCII letters
    "quote\" back\\slash: {{ brace }} 'n #",
]


@pytest.mark.parametrize("prefix", ["jf", "blue_2"])
def test_keda_reads_the_consumers_of_the_pool(chart: HelmChart, prefix: str) -> None:
    values = scaled_models(MODEL_NAMES) | {"streams": {"prefix": prefix}}
    check_names(chart.render(values), prefix, MODEL_NAMES)


@settings(max_examples=settings().max_examples // 10, deadline=None)
@given(names=st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=5, unique=True))
def test_the_chart_computes_pools_as_python_does(chart: HelmChart, names: list[str]) -> None:
    check_names(chart.render(scaled_models(names)), "jf", names)


def test_a_model_is_served_under_its_folders_name_or_hub_id(chart: HelmChart) -> None:
    rendered = chart.render(KEDA)
    check_names(rendered, "jf", ["meta-llama/Llama-3.2-1B-Instruct", "Stories_2"])
    args = rendered.container("jf-jetflock-worker-story")["args"]
    assert args == ["worker", "/models/Stories_2", "--model-name=Stories_2"]


async def test_setup_makes_the_consumers_that_keda_reads(
    chart: HelmChart, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = chart.render(KEDA | {"nats": {"enabled": False, "url": nats_server.url,
                                             "monitoringEndpoint": "x:8222"}})  # fmt: skip
    for name in ("jf-jetflock-setup-chat", "jf-jetflock-setup-story"):
        container = rendered.container(name)
        for variable, value in env_of(container).items():
            monkeypatch.setenv(variable, value)
        await asyncio.to_thread(setup.PROGRAM.run, container["args"][1:])
    config = ClusterConfig(nats_url=nats_server.url, num_partitions=16)
    async with open_cluster(config, "test") as cluster:
        answer = await cluster.js.api("CONSUMER.NAMES.jf_REQUESTS")
    wanted = {
        trigger["metadata"]["consumer"]
        for scaled in rendered.of_kind("ScaledObject")
        for trigger in scaled["spec"]["triggers"]
    }
    assert set(answer["consumers"]) == wanted


def test_the_chart_names_the_images_of_this_version(chart: HelmChart) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for name, pod in chart.render().pods():
        image = pod["containers"][0]["image"]
        assert image.partition(":")[2] == project["version"], name


# What the roles read

ROLES: dict[str, type[ClusterConfig]] = {
    "frontend": FrontendConfig,
    "detok": DetokConfig,
    "worker": WorkerConfig,
    "setup": SetupConfig,
}


def read_as(role: str, argv: list[str]) -> ClusterConfig:
    """The configuration that this role makes of its arguments and the environment."""
    kind = ROLES[role]
    read: list[ClusterConfig] = []

    def with_model(model: str | None = None, /, config: Any = kind()) -> None:  # noqa: B008
        read.append(config)

    def without_model(config: Any = kind()) -> None:  # noqa: B008
        read.append(config)

    main: Callable[..., None] = without_model if role in ("frontend", "detok") else with_model
    main.__annotations__["config"] = Annotated[kind, FLAT]
    Program(name=role, summary="", main=main).run(argv)
    return read[0]


def test_bills_are_kept_where_they_are_wanted(chart: HelmChart) -> None:
    for seconds in (0, 86400):
        values = bundled_nats() | {"streams": {"billsTtlSeconds": seconds}}
        for _, pod in chart.render(values).pods():
            told = env_of(pod["containers"][0]).get("JETFLOCK_BILLS_TTL_S")
            assert told == (str(seconds) if seconds else None)


@pytest.mark.parametrize("case", CASES)
def test_the_roles_understand_what_they_are_told(
    chart: HelmChart, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, pod in chart.render(CASES[case]).pods():
        [container] = pod["containers"]
        role, *argv = container["args"]
        fields = {field.name for field in dataclasses.fields(ROLES[role])}
        with monkeypatch.context() as patch:
            for variable, value in env_of(container).items():
                patch.setenv(variable, value)
                if variable.startswith("JETFLOCK_"):
                    assert variable.removeprefix("JETFLOCK_").lower() in fields, (name, variable)
            config = read_as(role, argv)
        assert config.nats_url in ("nats://jf-nats:4222", "nats://broker.example:4222",
                                   "tls://broker.example:4222")  # fmt: skip
        assert config.num_partitions == (32 if case == "everything" else 16)
        if isinstance(config, WorkerConfig):
            assert config.metrics_port == container["ports"][0]["containerPort"]
            assert config.shutdown_timeout_s == 0
            assert config.max_context_len == (8192 if case == "everything" else None)
        if isinstance(config, FrontendConfig):
            assert config.port == container["ports"][0]["containerPort"]
            assert config.host == "0.0.0.0"


def test_gpu_pools(chart: HelmChart) -> None:
    rendered = chart.render(GPU)
    container = rendered.container("jf-jetflock-worker-large")
    assert container["image"].startswith("jetflock-worker-cuda:")
    assert container["resources"] == {
        "requests": {"cpu": 8, "memory": "4Gi"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": 2},
    }
    assert {"--device=cuda", "--tp=2"} <= set(container["args"])
    layers = chart.render({**GPU, "worker": {"gpuSplit": "layers"}})
    assert "--pp=2" in layers.container("jf-jetflock-worker-large")["args"]
    assert dict(rendered.pods())["jf-jetflock-worker-large"]["runtimeClassName"] == "nvidia"
    assert rendered.one("PersistentVolumeClaim", "jf-jetflock-worker-large-cache")


def test_credentials_come_from_one_secret_a_role(chart: HelmChart) -> None:
    for kind, variables in {
        "creds": {"JETFLOCK_NATS_CREDS"},
        "nkey": {"JETFLOCK_NATS_NKEY_FILE"},
        "password": {"JETFLOCK_NATS_USER", "JETFLOCK_NATS_PASSWORD_FILE"},
    }.items():
        nats = EVERYTHING["nats"] | {"auth": EVERYTHING["nats"]["auth"] | {"type": kind}}
        for name, pod in chart.render(EVERYTHING | {"nats": nats}).pods():
            [container] = pod["containers"]
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            role = container["args"][0]
            assert volumes["nats-auth"]["secret"]["secretName"] == f"nats-{role}", name
            names = {item["name"] for item in container["env"]}
            assert variables <= names
            if role == "frontend":
                for user in ("service", "eraser"):
                    assert volumes[f"nats-{user}"]["secret"]["secretName"] == f"nats-{user}"
                    theirs = {name.replace("NATS_", f"NATS_{user.upper()}_") for name in variables}
                    assert theirs <= names


@pytest.mark.parametrize(
    ("with_limits", "variable", "key"),
    [
        (False, "JETFLOCK_API_KEY_FILE", "api-keys"),
        (True, "JETFLOCK_API_KEYS_FILE", "api-keys.yaml"),
    ],
)
def test_api_keys_are_a_mounted_file(
    chart: HelmChart, with_limits: bool, variable: str, key: str
) -> None:
    keys = {"existingSecret": "who-may", "withLimits": with_limits}
    pods = dict(chart.render({"frontend": {"apiKeys": keys}}).pods())
    pod = pods["jf-jetflock-frontend"]
    [container] = pod["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    assert {name: value for name, value in env.items() if "API_KEY" in name} == {
        variable: f"/etc/jetflock/api-keys/{key}"
    }
    # The whole folder: a file that is mounted alone never changes.
    [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "api-keys"]
    assert mount == {"name": "api-keys", "mountPath": "/etc/jetflock/api-keys", "readOnly": True}
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "api-keys"]
    assert volume["secret"] == {"secretName": "who-may", "defaultMode": 0o440}
    assert not [name for name, other in pods.items() if "who-may" in str(other) and other != pod]


def test_all_roles_are_told_of_the_collector(chart: HelmChart) -> None:
    otel = {"endpoint": "http://collector:4318", "samplingRatio": 0.05}
    for name, pod in chart.render(EVERYTHING | {"otel": otel}).pods():
        [container] = pod["containers"]
        env = {item["name"]: item.get("value") for item in container["env"]}
        assert env["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318", name
        assert env["OTEL_TRACES_SAMPLER"] == "parentbased_traceidratio"
        assert env["OTEL_TRACES_SAMPLER_ARG"] == "0.05"
    [container] = dict(chart.render({}).pods())["jf-jetflock-detok"]["containers"]
    assert not [item for item in container["env"] if item["name"].startswith("OTEL_")]


# How pods live and end


@pytest.mark.parametrize("case", CASES)
def test_pods_run_unprivileged(chart: HelmChart, case: str) -> None:
    for _, pod in chart.render(CASES[case]).pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        assert not pod["enableServiceLinks"]  # a Service `jetflock` would set JETFLOCK_PORT
        [container] = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_probes_ask_what_the_roles_answer(chart: HelmChart) -> None:
    rendered = chart.render()
    for deployment in rendered.of_kind("Deployment"):
        container = rendered.container(deployment["metadata"]["name"])
        [port] = container["ports"]
        paths = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
        assert paths == {
            "startupProbe": {"path": LIVE_PATH, "port": port["name"]},
            "livenessProbe": {"path": LIVE_PATH, "port": port["name"]},
            "readinessProbe": {"path": READY_PATH, "port": port["name"]},
        }


def test_only_frontends_wait_before_they_stop(chart: HelmChart) -> None:
    for name, pod in chart.render().pods():
        [container] = pod["containers"]
        assert ("lifecycle" in container) == name.endswith("-frontend")


def test_an_autoscaler_owns_the_number_of_replicas(chart: HelmChart) -> None:
    deployments = {
        item["metadata"]["name"]: item["spec"].get("replicas")
        for item in chart.render(EVERYTHING).of_kind("Deployment")
    }
    assert deployments == {
        "jf-jetflock-frontend": None,
        "jf-jetflock-detok": None,
        "jf-jetflock-worker-scaled": None,
        "jf-jetflock-worker-metered": None,
        "jf-jetflock-worker-fixed": 5,
    }


def test_workers_of_each_role_are_scaled_by_their_own_load(chart: HelmChart) -> None:
    rendered = chart.render(ROLES_APART)
    metrics = {
        "prefill": ("prompts", "jetflock_num_prompt_tokens_waiting", "2048"),
        "decode": ("tokens", "jetflock_num_requests_running", "16"),
    }
    for role, (name, metric, target) in metrics.items():
        full_name = f"jf-jetflock-worker-{name}"
        assert f"--role={role}" in rendered.container(full_name)["args"]
        spec = rendered.one("HorizontalPodAutoscaler", full_name)["spec"]
        [pods] = (each["pods"] for each in spec["metrics"])
        assert (pods["metric"]["name"], pods["target"]["averageValue"]) == (metric, target)


def test_frontends_and_detokenizers_are_scaled_by_their_load(chart: HelmChart) -> None:
    assert not chart.render().of_kind("HorizontalPodAutoscaler")
    rendered = chart.render(EVERYTHING)
    for role, most in (("frontend", 20), ("detok", 12)):
        name = f"jf-jetflock-{role}"
        spec = rendered.one("HorizontalPodAutoscaler", name)["spec"]
        assert spec["scaleTargetRef"]["name"] == name
        assert (spec["minReplicas"], spec["maxReplicas"]) == (2, most)


def test_pods_of_a_role_are_spread_over_nodes_and_zones(chart: HelmChart) -> None:
    """Unless the values say otherwise; never so that a pod finds no place."""
    for deployment in chart.render().of_kind("Deployment"):
        pod = deployment["spec"]["template"]
        spread = pod["spec"]["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in spread] == [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        ]
        for each in spread:
            assert each["whenUnsatisfiable"] == "ScheduleAnyway"
            assert (
                each["labelSelector"]["matchLabels"]
                == deployment["spec"]["selector"]["matchLabels"]
            )
    packed = chart.render({"detok": {"topologySpreadConstraints": []}})
    assert "topologySpreadConstraints" not in dict(packed.pods())["jf-jetflock-detok"]


def test_selectors_meet_exactly_their_pods(chart: HelmChart) -> None:
    rendered = chart.render(EVERYTHING)
    labels = {
        item["metadata"]["name"]: item["spec"]["template"]["metadata"]["labels"]
        for kind in ("Deployment", "Job")
        for item in rendered.of_kind(kind)
    }
    for kind in ("Deployment", "PodDisruptionBudget", "NetworkPolicy"):
        for manifest in rendered.of_kind(kind):
            spec = manifest["spec"]
            selector = (spec.get("selector") or spec.get("podSelector"))["matchLabels"].items()
            met = [name for name, pod_labels in labels.items() if selector <= pod_labels.items()]
            assert met == [manifest["metadata"]["name"]]
            _, *inner = spec.get("ingress", [None])  # workers of a pool send pages to each other
            pool = labels[met[0]].get("jetflock/pool") if kind == "NetworkPolicy" else None
            assert [each["from"][0]["podSelector"]["matchLabels"] for each in inner] == (
                [] if pool is None else [{"jetflock/pool": pool}]
            )


@pytest.mark.parametrize(
    ("values", "is_upgrade", "is_hook"),
    [({}, False, False), ({}, True, True), (EXTERNAL_NATS, False, True)],
)
def test_setup_runs_before_the_rest_where_nats_is_there(
    chart: HelmChart, values: Values, is_upgrade: bool, is_hook: bool
) -> None:
    [job] = chart.render(values, is_upgrade=is_upgrade).of_kind("Job")
    hook = job["metadata"].get("annotations", {}).get("helm.sh/hook")
    assert hook == ("pre-install,pre-upgrade" if is_hook else None)
    assert "serviceAccountName" not in job["spec"]["template"]["spec"]  # not made yet


def test_the_bundled_nats_is_found_under_its_name(chart: HelmChart) -> None:
    for release, name in {"jf": "jf-nats", "my-nats": "my-nats"}.items():
        rendered = chart.render(KEDA, release)
        fullname = f"{release}-jetflock-frontend"
        assert env_of(rendered.container(fullname))["JETFLOCK_NATS_URL"] == f"nats://{name}:4222"
        [trigger, *_] = rendered.of_kind("ScaledObject")[0]["spec"]["triggers"]
        endpoint = trigger["metadata"]["natsServerMonitoringEndpoint"]
        assert endpoint == f"{name}-headless.llm.svc:8222"
    assert chart.render().one("ConfigMap", "stands-for-nats")
    assert not chart.render(EXTERNAL_NATS).of_kind("ConfigMap")


def test_dashboard_and_rules_come_with_the_chart(chart: HelmChart) -> None:
    rendered = chart.render(EVERYTHING)
    config_map = rendered.one("ConfigMap", "jf-jetflock-dashboard")
    assert json.loads(config_map["data"]["jetflock.json"]) == dashboard()
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    rules = yaml.safe_load((REPOSITORY / "deploy/prometheus/rules.yaml").read_text())
    assert rendered.one("PrometheusRule", "jf-jetflock")["spec"] == rules
    assert not chart.render().of_kind("PrometheusRule")

"""The command line and environment of each role, made from the configuration of the whole."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local.gpu_share import gpu_share
from deploy.local.serve_config import ServeConfig
from deploy.processes.kept_process import Launch
from detok.config import DetokConfig
from frontend.config import FrontendConfig
from shared.config import ENV_PREFIX, ClusterConfig
from shared.protocol.role_cards import WorkerRole
from shared.subjects import new_incarnation
from shared.telemetry.log import LogFormat
from worker.config import WorkerConfig

# The folder that holds `frontend`, `worker`, ...: the repository, or jetflock/components.
COMPONENTS = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePrograms:
    """How each role is started; tests put stand-ins here."""

    frontend: Sequence[str] = (sys.executable, "-P", "-m", "frontend")
    front: Sequence[str] = (sys.executable, "-P", "-m", "deploy.local.front_process")
    worker: Sequence[str] = (sys.executable, "-P", "-m", "worker")
    detok: Sequence[str] = (sys.executable, "-P", "-m", "detok")
    admin: Sequence[str] = (sys.executable, "-P", "-m", "jetflock.commands.admin")


class RoleLaunches:
    """Makes launches, each under a new id. Secrets travel in the environment alone."""

    def __init__(
        self,
        config: ServeConfig,
        model_path: Path,
        log_format: LogFormat,
        programs: RolePrograms,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._config = config
        self._model_path = model_path
        self._programs = programs
        ours = {_variable(field.name) for field in dataclasses.fields(ServeConfig)}
        ours |= {_variable("config"), _variable("model")}
        paths = [str(COMPONENTS), environ.get("PYTHONPATH", "")]
        self._environ = {name: value for name, value in environ.items() if name not in ours} | {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONUNBUFFERED": "1",
            _variable("log_format"): log_format,
        }

    def frontend(self) -> Launch:
        frontend_id = new_incarnation("frontend")
        return Launch(
            [*self._programs.frontend, *self._address, "--frontend-id", frontend_id],
            self._env(FrontendConfig, exclude=("host", "port")),
            frontend_id,
        )

    def front(self) -> Launch:
        """Frontend and detokenizer in one process; its id is that of the detokenizer, for which
        others have to speak when it has died.
        """
        detok_id = new_incarnation("detok")
        env = self._env(FrontendConfig, exclude=("host", "port"))
        env |= self._env(DetokConfig, exclude=("detok_id",))
        argv = [*self._programs.front, *self._address, "--detok-id", detok_id]
        return Launch(argv, env, detok_id)

    def detok(self) -> Launch:
        detok_id = new_incarnation(self._config.detok_id or "detok")
        return Launch(
            [*self._programs.detok, "--detok-id", detok_id],
            self._env(DetokConfig, exclude=("detok_id",)),
            detok_id,
        )

    def admin(self) -> Launch:
        config = self._config
        argv = ["serve", "--admin-port", str(config.admin_port), "--admin-host", config.admin_host]
        if config.admin_key_file is not None:
            argv += ["--admin-key-file", str(config.admin_key_file)]
        for origin in config.admin_page_origin:
            argv += ["--admin-page-origin", origin]
        env = self._env(ClusterConfig) | {_variable("nats_url"): config.nats_url}
        if config.admin_key is not None:
            env[_variable("admin_key")] = config.admin_key
        return Launch([*self._programs.admin, *argv], env)

    def worker(self, worker_idx: int, role: WorkerRole) -> Callable[[], Launch]:
        """The command of the worker with this index."""

        def launch() -> Launch:
            config, worker_id = self._config, new_incarnation("worker")
            assert config.model_name is not None
            names = ("--model-name", config.model_name, "--worker-id", worker_id)
            loras = [word for lora in config.lora for word in ("--lora", lora)]
            env = self._env(
                WorkerConfig, exclude=("model_name", "lora"), metrics_offset=worker_idx + 1
            )
            if role != config.role:
                env[_variable("role")] = role
            if config.device != "cpu":
                env |= gpu_share(self._environ, worker_idx, config.num_local_ranks)
            argv = [*self._programs.worker, str(self._model_path), *names, *loras]
            return Launch(argv, env, worker_id)

        return launch

    @property
    def _address(self) -> Sequence[str]:
        return ("--host", self._config.host, "--port", str(self._config.port))

    def _env(
        self, role: type[ClusterConfig], exclude: Sequence[str] = (), metrics_offset: int = 0
    ) -> dict[str, str]:
        env = dict(self._environ)
        for field in dataclasses.fields(role):
            value = getattr(self._config, field.name)
            if field.name in exclude or value is None or value == field.default:
                continue
            if field.name == "metrics_port":  # one a process
                value += metrics_offset
            env.setdefault(_variable(field.name), _text(value))
        return env


def _variable(field_name: str) -> str:
    return ENV_PREFIX + field_name.upper()


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)

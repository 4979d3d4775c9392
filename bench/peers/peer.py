"""The other engines, and how each is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.runner_process import RunnerProcess, runner_environment


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine with an environment of its own, made by bench/peers/setup.sh."""

    name: str
    venv: str  # folder of its environment
    is_converted: bool = False  # it wants the checkpoint in a format of its own
    is_server: bool = False  # its runner is ours: a client that starts it
    variables: dict[str, str] = field(default_factory=dict)  # {venv} and {cpus} are filled in

    def start(
        self, peers_dir: Path, flags: Sequence[str], num_threads: int, log_path: Path
    ) -> RunnerProcess:
        """Loaded. The first start converts the checkpoint, which does not count as loading."""
        venv = (peers_dir / self.venv).absolute()
        python = venv / "bin" / "python"
        if not python.exists():
            raise SystemExit(f"no {python}: bench/peers/setup.sh {self.venv} {peers_dir}")
        variables = {
            name: value.format(venv=venv, cpus=f"0-{num_threads - 1}")
            for name, value in self.variables.items()
        }
        if self.is_server:
            flags = [*flags, f"--set=python={python}"]
            return RunnerProcess(self.name, Path(sys.executable), flags, variables, log_path)
        if self.is_converted:
            self.convert(peers_dir, flags, log_path)
        return RunnerProcess(self.name, python, flags, variables, log_path)

    def convert(self, peers_dir: Path, flags: Sequence[str], log_path: Path) -> None:
        """Writes the checkpoint in the engine's own format, unless it is there."""
        python = (peers_dir / self.venv).absolute() / "bin" / "python"
        command = [str(python), "-m", f"bench.peers.{self.name}_runner", *flags, "--convert"]
        with log_path.open("w") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, env=runner_environment({}))


_VLLM_VARIABLES = {
    # By default it keeps one core free for its own front.
    "VLLM_CPU_OMP_THREADS_BIND": "{cpus}",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "LD_PRELOAD": "{venv}/lib/libiomp5.so",
}
PEERS = {
    peer.name: peer
    for peer in (
        Peer("transformers", "transformers"),
        Peer("transformers_generate", "transformers"),
        Peer("vllm", "vllm", variables=_VLLM_VARIABLES),
        Peer("vllm_http", "vllm", is_server=True, variables=_VLLM_VARIABLES),
        Peer("openvino", "openvino", is_converted=True),
        Peer("llamacpp", "llamacpp", is_converted=True),
    )
}

"""One nats-server for a benchmark, or several that hold streams together."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil

from deploy.local.nats_binary import find_nats_server
from deploy.local.ports import free_port


class NatsServers:
    """They have started, and may not answer yet; `stop` is kill -9."""

    def __init__(self, count: int, folder: Path, sync_interval: str = "2m") -> None:
        self.ports = [free_port() for _ in range(count)]
        routes = [free_port() for _ in range(count)]
        self._processes = []
        for idx, port in enumerate(self.ports):
            settings: dict[str, object] = {
                "server_name": f"n{idx}",
                "listen": f"127.0.0.1:{port}",
                "jetstream": {
                    "store_dir": str(folder / f"n{idx}"),
                    "max_file_store": 32 << 30,
                    "sync_interval": sync_interval,
                },
            }
            if count > 1:
                settings["cluster"] = {
                    "name": "bench",
                    "listen": f"127.0.0.1:{routes[idx]}",
                    "routes": [f"nats-route://127.0.0.1:{route}" for route in routes],
                }
            file = folder / f"n{idx}.conf"
            file.write_text(json.dumps(settings))
            command = [find_nats_server(None).path, "-c", str(file)]
            self._processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    @property
    def urls(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self.ports)

    def cpu_s(self) -> float:
        times = [psutil.Process(process.pid).cpu_times() for process in self._processes]
        return sum(each.user + each.system for each in times)

    def stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()

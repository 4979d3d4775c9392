"""A process that tries kernels: `python -m worker.engine.cuda.trials SOCKET_FD GPU`, by an engine.

What a kernel does to it, it does not do to the engine. GPU is the number of one, or `cpu`.
"""

from __future__ import annotations

import socket
import sys

import msgspec

from worker.engine.cuda.cuda_device import CudaDevice
from worker.engine.cuda.trials.trial_messages import Question, Unavailable
from worker.engine.cuda.trials.tryer import Tryer
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.host_device import HostDevice
from worker.engine.process import die_with_parent, leave


def main(argv: list[str]) -> int:
    """An empty line when it can begin; then a question a line, and its answer in another."""
    die_with_parent()
    fd, gpu = argv
    device: GpuDevice = HostDevice() if gpu == "cpu" else CudaDevice(int(gpu))
    tryer = Tryer(device)
    decoder = msgspec.json.Decoder(Question)
    with socket.socket(fileno=int(fd)) as connection, connection.makefile("rwb") as lines:
        lines.write(b"\n")
        lines.flush()
        for line in lines:
            answer = tryer.answer(decoder.decode(line))
            lines.write(msgspec.json.encode(answer) + b"\n")
            lines.flush()
            if isinstance(answer, Unavailable) and answer.is_fatal:
                break
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))

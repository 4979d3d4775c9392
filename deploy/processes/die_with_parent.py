"""Runs a command that the kernel kills when its parent dies: `die_with_parent.py PPID COMMAND...`.

A script of its own, started with `python -I -S`, because the request to the kernel has to be made
between fork and exec, where a parent that has threads must not run Python (`preexec_fn`).
The kernel sends the signal when the *thread* that forked ends: start children from the main thread.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel, check that it was not too late, become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux" and libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - the supervisor's own command


if __name__ == "__main__":
    main()

"""`jetflock bench`, or `python -m jetflock.bench`: measures a running service."""

from jetflock.bench.serve import serve
from shared.cli.program import Program

_SUMMARY = "Measure a running service."

PROGRAM = Program(
    name="jetflock bench",
    summary=_SUMMARY,
    commands={"serve": serve},
    first=(
        *("url", "model", "endpoint", "concurrency", "request_rate", "sweep", "num_requests"),
        *("duration_s", "input_len", "output_len", "lengths", "dataset", "goodput"),
        *("json", "plot", "compare"),
    ),
)

if __name__ == "__main__":
    PROGRAM.run()

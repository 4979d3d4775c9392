"""The result of an engine benchmark: as JSON, and as tables for docs/performance.md."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bench.measurement import Measurement
from bench.model_shape import ModelShape
from bench.roofline import Ceilings, roofline_s
from bench.workloads import Workload


@dataclass(slots=True)
class EngineReport:
    """All measurements of a run of the benchmark, by workload and engine."""

    shape: ModelShape
    dtype: str  # or the kind of a GGUF file
    bytes_per_value: float  # of the weights
    versions: dict[str, str] = field(default_factory=dict)  # by engine, as the next ones
    load_s: dict[str, float] = field(default_factory=dict)
    rounds: dict[Workload, dict[str, list[Measurement]]] = field(default_factory=dict)
    # Share of tokens before the first that differs from ours, of the last round:
    agreement: dict[Workload, dict[str, float]] = field(default_factory=dict)

    def add(self, workload: Workload, engine: str, measurement: Measurement) -> None:
        self.rounds.setdefault(workload, {}).setdefault(engine, []).append(measurement)

    def roofline_tokens_per_s(self, workload: Workload, ceilings: Ceilings) -> float:
        seconds = roofline_s(workload, self.shape, ceilings, self.bytes_per_value)
        return workload.num_counted_tokens / seconds

    def markdown(self, ceilings: Ceilings) -> str:
        lines = [
            f"{self.dtype}; read {ceilings.read_bytes_per_s / 1e9:.1f} GB/s, "
            f"GEMM {ceilings.flops_per_s / 1e9:.0f} GFLOP/s.",
            "",
            "| engine | version | load s |",
            "|---|---|---|",
        ]
        for engine, version in self.versions.items():
            lines.append(f"| {engine} | {version} | {self.load_s[engine]:.1f} |")
        for workload in self.rounds:
            lines += ["", *self._workload_table(workload, ceilings)]
        return "\n".join(lines)

    def to_builtins(self, ceilings: Ceilings) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "ceilings": asdict(ceilings),
            "versions": self.versions,
            "load_s": self.load_s,
            "agreement": {key.name: value for key, value in self.agreement.items()},
            "rounds": {
                workload.name: {
                    engine: [asdict(one) for one in measurements]
                    for engine, measurements in engines.items()
                }
                for workload, engines in self.rounds.items()
            },
        }

    def _workload_table(self, workload: Workload, ceilings: Ceilings) -> list[str]:
        engines = self.rounds[workload]
        num_rounds = max(len(measurements) for measurements in engines.values())
        roofline = self.roofline_tokens_per_s(workload, ceilings)
        unit = "in tok/s" if workload.is_prefill else "out tok/s"
        lines = [
            f"{workload.name}: {workload.title}; roofline {roofline:.0f} {unit}; "
            f"medians of {num_rounds}",
            "",
            f"| | {unit} | range | of roofline | TTFT p50 / p99 ms | ITL p50 / p99 ms "
            "| CPU ms a token | peak MiB | same tokens |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for engine, measurements in engines.items():
            median = Measurement.median(measurements)
            rates = [one.tokens_per_s for one in measurements]
            itl = f"{median.itl_p50_s * 1e3:.1f} / {median.itl_p99_s * 1e3:.1f}"
            agreement = self.agreement.get(workload, {}).get(engine)
            lines.append(
                f"| {engine} | {median.tokens_per_s:.1f} | {min(rates):.1f} to {max(rates):.1f} "
                f"| {median.tokens_per_s / roofline:.0%} "
                f"| {median.ttft_p50_s * 1e3:.0f} / {median.ttft_p99_s * 1e3:.0f} "
                f"| {'' if workload.output_len == 1 else itl} "
                f"| {median.cpu_s_per_token * 1e3:.3f} | {median.peak_bytes / 2**20:.0f} "
                f"| {'' if agreement is None else f'{agreement:.0%}'} |"
            )
        return lines

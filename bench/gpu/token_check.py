"""Tokens of a tiny model by our kernels, in several ways, against plain torch's."""

from __future__ import annotations

from typing import Any

from bench.gpu.direct_engine import DirectEngine, random_prompts
from bench.gpu.rig import Rig
from worker.engine.cuda.cuda_device import CudaDevice

SAMPLINGS: tuple[dict[str, Any], ...] = ({}, {"temperature": 1.0, "seed": 5, "top_p": 0.9})
# Plain torch needs much memory for large steps.
_ON_GPU = {"max_running": 8, "max_step_tokens": 256}
_ON_CPU = {"max_running": 2, "max_step_tokens": 16}


class TokenCheck:
    """In float32, drawn and greedy: kernels that round otherwise choose the same tokens."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._prompts = random_prompts(rig.sizes.token_lens, seed=3)
        self._wanted = self._tokens(self._engine(attention_backend="torch"))

    def run(self) -> None:
        engine = self._engine()
        self._compare("graphs", engine)
        engine.set_overlap(False)
        self._compare("no overlap", engine)
        device = self._rig.device
        if isinstance(device, CudaDevice):
            self._check_syncs(engine, device)
            del engine
            self._compare("no graphs", self._engine(cuda_graph_sizes=(0,), cuda_graph_tokens=(0,)))

    def _engine(self, **config: Any) -> DirectEngine:
        sizes = _ON_GPU if self._rig.is_gpu else _ON_CPU
        return self._rig.engine("tiny", dtype="float32", num_kv_tokens=4096, **sizes, **config)

    def _tokens(self, engine: DirectEngine) -> list[list[int]]:
        output_lens = [self._rig.sizes.token_outputs] * len(self._prompts)
        return [
            tokens
            for sampling in SAMPLINGS
            for tokens in engine.run(self._prompts, output_lens, **sampling).tokens
        ]

    def _compare(self, what: str, engine: DirectEngine) -> None:
        ours = self._tokens(engine)
        num_same = sum(a == b for a, b in zip(ours, self._wanted, strict=True))
        facts = {"what": f"tokens, {what}", "same": num_same, "of": len(ours)}
        self._tell(facts, num_same == len(ours))

    def _check_syncs(self, engine: DirectEngine, device: CudaDevice) -> None:
        waiting = ""
        device.check_syncs = True
        try:
            self._tokens(engine)
        except RuntimeError as exc:
            waiting = str(exc)
        finally:
            device.check_syncs = False
        facts = {"what": "no step waits for the GPU"}
        self._tell(facts | ({"error": waiting} if waiting else {}), not waiting)

    def _tell(self, facts: dict[str, Any], ok: bool) -> None:
        self._rig.tell(facts | {"backend": self._rig.backend, "ok": ok})

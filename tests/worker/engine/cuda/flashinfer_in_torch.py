"""What flashinfer compiles, in plain torch: its own Python runs above it, on a CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from worker.engine.device.gpu_device import GpuDevice

CAUSAL = 1  # of flashinfer's MaskMode


def install(monkeypatch: pytest.MonkeyPatch, device: GpuDevice) -> None:
    """What would be work of the GPU is enqueued on `device`."""
    import flashinfer.decode
    import flashinfer.prefill

    for module in (flashinfer.decode, flashinfer.prefill):
        monkeypatch.setattr(module, "torch", TorchWithoutPinning())
        monkeypatch.setattr(module, "device_support_pdl", lambda _: False)
        monkeypatch.setattr(
            module,
            "get_batch_prefill_module",
            lambda backend, *args: Prefill(device, args, backend),
        )
    monkeypatch.setattr(
        flashinfer.decode, "get_batch_decode_module", lambda *args: Decode(device, args)
    )
    monkeypatch.setattr(flashinfer.decode, "get_device_sm_count", lambda _: 1)
    signature = inspect.signature(flashinfer.decode.xqa)
    monkeypatch.setattr(
        flashinfer.decode,
        "xqa",
        lambda *args, **options: xqa(device, signature.bind(*args, **options)),
    )


class TorchWithoutPinning:
    """Memory is pinned for a GPU that there is not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.empty(*args, **options)


class Module:
    """A plan is written to host memory, copied when its turn comes, and must be there to run."""

    def __init__(self, device: GpuDevice, args: tuple[Any, ...]) -> None:
        self._device = device
        (self._dtype_q, self._dtype_kv, self._dtype_o, index, head_dim, _, position) = args[:7]
        assert (index, position) == (torch.int32, 0)
        self._head_dim = head_dim
        self._has_window, self._has_soft_cap = args[7:9]

    def _write_plan(self, ints: torch.Tensor, pinned: torch.Tensor, *tensors: torch.Tensor) -> None:
        values = torch.cat(tensors)
        assert values.dtype == torch.int32
        pinned.view(torch.int32)[: len(values)] = values

        def copy() -> None:
            ints.copy_(pinned)

        self._device.enqueue(copy)

    def _attend(
        self,
        ints: torch.Tensor,
        planned: tuple[torch.Tensor, ...],
        q: torch.Tensor,
        window_left: int,
        soft_cap: float,
        attend: Callable[[], None],
        *data: torch.Tensor,
    ) -> None:
        assert self._has_window == (window_left >= 0)
        assert self._has_soft_cap == (soft_cap > 0)
        assert q.dtype == self._dtype_q
        assert q.is_contiguous()
        assert {each.dtype for each in data} == {self._dtype_kv}

        def work() -> None:
            values = torch.cat(planned)
            assert torch.equal(ints.view(torch.int32)[: len(values)], values), "another plan"
            attend()

        self._device.enqueue(work)


class Decode(Module):
    """batch_decode: without tensor cores."""

    def plan(  # type: ignore[no-untyped-def]
        self, floats, ints, pinned, indptr, batch_size, num_heads, num_kv_heads, *rest
    ):
        assert (indptr.device.type, len(indptr), len(rest)) == ("cpu", batch_size + 1, 8)
        assert num_heads // num_kv_heads in (1, 2, 3)
        self._write_plan(ints, pinned, indptr)
        return ["decode"]

    def run(  # type: ignore[no-untyped-def]
        self, floats, ints, plan, q, keys, values, indptr, pages, last_page_len, out, *rest
    ):
        assert (plan, len(rest)) == (["decode"], 9)
        window_left, soft_cap, scale = rest[2], rest[5], rest[6]
        queries = torch.arange(len(q) + 1, dtype=torch.int32)
        attend = partial(
            paged_attention,
            *(q, keys, values, queries, indptr, pages, last_page_len, out),
            *(window_left, soft_cap, scale),
        )
        self._attend(ints, (indptr,), q, window_left, soft_cap, attend, keys, values)


class Prefill(Module):
    """batch_prefill, of fa2 and fa3; decode with tensor cores is fa2's."""

    def __init__(self, device: GpuDevice, args: tuple[Any, ...], backend: str) -> None:
        super().__init__(device, args)
        assert backend in ("fa2", "fa3")
        assert args[9:] == (False,)
        self._num_options = 14 if backend == "fa2" else 10

    def plan(  # type: ignore[no-untyped-def]
        self, floats, ints, pinned, queries, indptr, seq_lens, num_queries, *rest
    ):
        assert (num_queries, len(rest)) == (queries[-1], self._num_options - 1)
        self._write_plan(ints, pinned, queries, indptr, seq_lens)
        return ["prefill"]

    def paged_run(  # type: ignore[no-untyped-def]
        self, floats, ints, plan, q, keys, values, queries, indptr, pages, last_page_len, out, *rest
    ):
        assert plan == ["prefill"]
        mask_mode, window_left, soft_cap, scale = rest[1], rest[3], rest[11], rest[12]
        assert mask_mode == CAUSAL or (queries.diff() == 1).all()
        attend = partial(
            paged_attention,
            *(q, keys, values, queries, indptr, pages, last_page_len, out),
            *(window_left, soft_cap, scale),
        )
        self._attend(ints, (queries, indptr), q, window_left, soft_cap, attend, keys, values)


def xqa(device: GpuDevice, bound: inspect.BoundArguments) -> None:
    bound.apply_defaults()
    args = bound.arguments
    q, out, seq_lens, table = (args[name] for name in ("q", "output", "seq_lens", "page_table"))
    keys, values = args["k_cache"], args["v_cache"]
    page_size, num_kv_heads = keys.shape[1:3]
    assert (args["page_size"], args["num_kv_heads"]) == (page_size, num_kv_heads)
    assert (q.dim(), q.shape[1], seq_lens.shape[1]) == (4, 1, 1)
    assert table.is_contiguous()
    assert table.dtype == seq_lens.dtype == torch.int32
    assert (args["kv_layout"], args["kv_scale"], args["rcp_out_scale"]) == ("NHD", 1.0, 1.0)
    assert isinstance(args["q_scale"], float)

    def work() -> None:
        counts = -(-seq_lens[:, 0] // page_size)
        pages = torch.cat([row[:count] for row, count in zip(table, counts, strict=True)])
        paged_attention(
            q[:, 0],
            keys,
            values,
            torch.arange(len(q) + 1),
            torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0)]),
            pages,
            seq_lens[:, 0] - (counts - 1) * page_size,
            out[:, 0],
            args["sliding_win_size"] - 1,
            0.0,
            args["q_scale"] / q.shape[-1] ** 0.5,
            args["sinks"],
        )

    device.enqueue(work)


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    pages: torch.Tensor,
    last_page_len: torch.Tensor,
    out: torch.Tensor,
    window_left: int,
    soft_cap: float,
    scale: float,
    sinks: torch.Tensor | None = None,  # [num_kv_heads, group]
) -> None:
    page_size, num_kv_heads = keys.shape[1:3]
    group = q.shape[1] // num_kv_heads
    for row in range(len(last_page_len)):
        own = pages[kv_indptr[row] : kv_indptr[row + 1]].long()
        seq_len = (len(own) - 1) * page_size + int(last_page_len[row])
        k, v = (
            data[own].flatten(0, 1)[:seq_len].float().repeat_interleave(group, dim=1)
            for data in (keys, values)
        )
        queries = q[qo_indptr[row] : qo_indptr[row + 1]].float()
        scores = torch.einsum("qhd,khd->hqk", queries, k) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        positions = torch.arange(seq_len - len(queries), seq_len)[:, None]
        distance = positions - torch.arange(seq_len)
        is_hidden = distance < 0
        if window_left >= 0:
            is_hidden |= distance > window_left
        scores.masked_fill_(is_hidden, -torch.inf)
        if sinks is not None:
            added = sinks.flatten()[:, None, None].expand(-1, len(queries), 1)
            scores = torch.cat([scores, added], dim=-1)
        weights = scores.softmax(-1)[..., :seq_len]
        result = torch.einsum("hqk,khd->qhd", weights, v)
        out[qo_indptr[row] : qo_indptr[row + 1]] = result.to(out.dtype)

"""A GPU that is none, and as strict as one: its tensors are apart from the host's."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.worker.engine.cuda.late_device import LateDevice
from worker.engine.device.gpu_device import Work

aten = torch.ops.aten
_NAME = "strictgpu"
_setup_privateuseone_for_python_backend(_NAME)
DEVICE = torch.device(_NAME, 0)

# The host must know their results before it can go on.
_WAITING = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.unique_dim.default,
}
_COPIES = {aten._to_copy.default, aten.copy_.default}


class NotOnAGpu(Exception):
    """What this operation asks for, a GPU does not do, or only with the host waiting for it."""


class StrictTensor(torch.Tensor):
    """On the strict GPU; its values are those of a tensor on the host that nobody else has."""

    values: torch.Tensor  # type: ignore[assignment]  # torch's own is of sparse tensors

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> StrictTensor:
        self: StrictTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        self.values = values
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch says that it is a method
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        raise AssertionError("only within a StrictMode")


class StrictMode(TorchDispatchMode):
    """Computes on the host what is asked of the strict GPU, and refuses what mixes the two."""

    def __init__(self) -> None:
        super().__init__()
        self._is_step = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Inside, nothing may wait for the GPU."""
        before, self._is_step = self._is_step, True
        try:
            yield
        finally:
            self._is_step = before

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        leaves = tree_flatten((args, options))[0]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        is_ours = [isinstance(tensor, StrictTensor) for tensor in tensors]
        makes_ours = any(isinstance(leaf, torch.device) and leaf == DEVICE for leaf in leaves)
        if not any(is_ours) and not makes_ours:
            return func(*args, **options)
        with self:  # with inference_mode, operations come as they were called
            decomposed = func.decompose(*args, **options)
        if decomposed is not NotImplemented:
            return decomposed
        if func in _COPIES:
            return self._copy(func, args, options, makes_ours)
        self._check(func, args, tensors, is_ours)
        if makes_ours:
            options["device"] = "cpu"
        values = tree_map_only(StrictTensor, lambda tensor: tensor.values, (tuple(args), options))
        result = _computed(func, *values)
        return _like(result, tensors)

    def _copy(
        self, func: Any, args: Sequence[Any], options: dict[str, Any], makes_ours: bool
    ) -> Any:
        source = args[1] if func is aten.copy_.default else args[0]
        is_from = isinstance(source, StrictTensor)
        if func is aten.copy_.default:
            is_to = isinstance(args[0], StrictTensor)
            can_wait = not (args[2] if len(args) > 2 else options.get("non_blocking", False))
        else:
            is_to = makes_ours or (is_from and options.get("device") is None)
            can_wait = not options.get("non_blocking", False)
        if self._is_step and is_from != is_to and can_wait:
            raise NotOnAGpu(f"{func} waits: a copy between host and GPU without non_blocking")
        if func is aten.copy_.default:
            target, values = _values(args[0]), _values(source)
            target.copy_(values)
            return args[0]
        if makes_ours:
            options["device"] = "cpu"
        result = func(_values(source), **options)
        return StrictTensor(result) if is_to else result

    def _check(
        self,
        func: Any,
        args: Sequence[Any],
        tensors: Sequence[torch.Tensor],
        is_ours: Sequence[bool],
    ) -> None:
        for tensor, ours in zip(tensors, is_ours, strict=True):
            if not ours and any(is_ours) and tensor.dim() > 0:
                raise NotOnAGpu(
                    f"{func}: a tensor of the host {list(tensor.shape)} among the GPU's"
                )
        if not self._is_step:
            return
        if func in _WAITING:
            raise NotOnAGpu(f"{func}: the host waits for its result")
        if func.__name__.startswith("index") and any(
            tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:]
        ):
            raise NotOnAGpu(f"{func}: by a mask, whose size the host waits for")


def _computed(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    if func is aten.histc.default:  # which on a CPU knows no integers
        return func(args[0].float(), *args[1:], **options).to(args[0].dtype)
    return func(*args, **options)


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.values if isinstance(tensor, StrictTensor) else tensor


def _like(result: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """An operation in place gives back the tensor that it was given."""
    ours = {id(_values(tensor)): tensor for tensor in tensors}

    def wrap(values: torch.Tensor) -> torch.Tensor:
        return ours[id(values)] if id(values) in ours else StrictTensor(values)

    return tree_map_only(torch.Tensor, wrap, result)


class StrictDevice(LateDevice):
    """As late as `LateDevice`. Made by `strict_gpu`."""

    torch_device = DEVICE

    def __init__(self, mode: StrictMode) -> None:
        super().__init__()
        self._mode = mode

    def enqueue(self, work: Work) -> None:
        super().enqueue(self._strictly(work))

    def capture(self, work: Work) -> Work:
        return super().capture(self._strictly(work))

    def _strictly(self, work: Work) -> Work:
        def strict() -> None:
            with self._mode.step():
                work()

        return strict


@contextmanager
def strict_gpu() -> Iterator[StrictDevice]:
    """Inside, the device exists; Triton's interpreter computes kernels, of its tensors alone."""
    with StrictMode() as mode, _strict_kernels():
        yield StrictDevice(mode)


@contextmanager
def _strict_kernels() -> Iterator[None]:
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from triton.runtime.interpreter import GridExecutor

    interpret = GridExecutor.__call__

    def launch(executor: GridExecutor, *args: Any, **options: Any) -> None:
        values = tree_map_only(torch.Tensor, _of_kernel, (args, options))
        with _disable_current_modes():
            interpret(executor, *values[0], **values[1])

    with patch.object(GridExecutor, "__call__", launch):
        yield


def _of_kernel(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, StrictTensor):
        raise NotOnAGpu(f"a kernel gets a tensor of the host, {list(tensor.shape)}")
    return tensor.values

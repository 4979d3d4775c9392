"""What Triton would compile for the launches that its interpreter makes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

_OPTIONS = ("num_warps", "num_stages", "num_ctas")


@contextmanager
def launched_kernels() -> Iterator[set[tuple[Any, ...]]]:
    """A kernel's name with types and constants of its arguments: what each binary is made for."""
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime.interpreter import GridExecutor
    from triton.runtime.jit import native_specialize_impl

    launched: set[tuple[Any, ...]] = set()
    interpret = GridExecutor.__call__

    def launch(executor: GridExecutor, *args: Any, **options: Any) -> None:
        names = inspect.signature(executor.fn).parameters
        given = {name: value for name, value in options.items() if name in names}
        bound = inspect.signature(executor.fn).bind(*args, **given)
        bound.apply_defaults()
        launched.add(
            (
                executor.fn.__name__,
                *(
                    (name, _constant(value))
                    if name in executor.constexprs
                    else (name, native_specialize_impl(CUDABackend, value, False, True, True))
                    for name, value in bound.arguments.items()
                ),
                *((name, options[name]) for name in _OPTIONS if name in options),
            )
        )
        interpret(executor, *args, **options)

    with patch.object(GridExecutor, "__call__", launch):
        yield launched


def _constant(value: Any) -> Any:
    return str(value) if isinstance(value, torch.dtype) else value

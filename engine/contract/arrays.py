"""Where arrays live, and the namespace that computes on them. The only importer of cupy.

Kernels are written once against the array API standard. A `Device` gives them the namespace `xp` of the arrays, the two
transfers (explicit: no kernel converts by accident), and `contiguous`, which the standard lacks: vectorised functions
may round differently on strided memory, so kernels that care put their input in order first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import array_api_compat.numpy as numpy_namespace
import numpy as np
from numpy.typing import NDArray

from .errors import UsageError


@dataclass(frozen=True)
class Device:
    """A place for arrays. `to_host` copies to numpy, `from_host` brings a numpy array over (on the CPU: itself)."""

    name: str
    xp: Any
    to_host: Callable[[Any], NDArray[Any]]
    from_host: Callable[[NDArray[Any]], Any]
    contiguous: Callable[[Any], Any]

    @property
    def is_host(self) -> bool:
        """Whether its arrays are numpy arrays, so that nothing has to be transferred."""
        return self.xp is numpy_namespace


def _in_order(xp: Any) -> Callable[[Any], Any]:
    return lambda array: xp.asarray(array, order="C")  # `ascontiguousarray` would give a scalar an axis


HOST = Device("cpu", numpy_namespace, np.asarray, np.asarray, _in_order(np))


@cache
def find_device(name: str) -> Device:
    """The device called "cpu" or "cuda". UsageError for another name, and for "cuda" when cupy is not installed."""
    if name == "cpu":
        return HOST
    if name == "cuda":
        return _cuda()
    raise UsageError(f"device {name!r} is unknown; use 'cpu' or 'cuda'")


def namespace(name: str) -> Any:
    """The array namespace of the device called `name`; raises as `find_device`."""
    return find_device(name).xp


def dtype_of(xp: Any, name: str) -> Any:
    """The namespace's dtype for a numpy dtype name ("float32", "int64", "bool", ...)."""
    return getattr(xp, name)


def dtype_name(array: Any) -> str:
    """The numpy name of an array's dtype, whatever namespace it is from."""
    return str(array.dtype).rpartition(".")[2]


def silence() -> AbstractContextManager[Any]:
    """Let overflow to infinity and operations on NaN pass without a warning: graphs rely on both."""
    return np.errstate(all="ignore")


def _cuda() -> Device:
    try:
        import array_api_compat.cupy as cupy_namespace
        import cupy
    except ImportError as error:
        raise UsageError("device 'cuda' needs cupy; install the extra: pip install 'warmcold[cuda12]'") from error
    return Device("cuda", cupy_namespace, cupy.asnumpy, cupy.asarray, _in_order(cupy))

"""Where arrays live, and the namespace that computes on them. The only importer of cupy.

Kernels are written once against the array API standard. A `Device` gives them the namespace `xp` of the arrays, the two
transfers (explicit: no kernel converts by accident), and `contiguous`, which the standard lacks: vectorised functions
may round differently on strided memory, so kernels that care put their input in order first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import array_api_compat.numpy as numpy_namespace
import numpy as np
from numpy.typing import NDArray

from .errors import UsageError

Array: TypeAlias = Any
"""An array of whichever namespace the device has: the array API publishes no type that NumPy and CuPy share."""

Namespace: TypeAlias = Any
"""A module of functions on such arrays, as the array API standard has them. For NumPy and CuPy, array-api-compat's."""

HostArray: TypeAlias = NDArray[Any]
"""A numpy array of any dtype: what comes from a file, from a caller, or from `Device.to_host`."""

Feeds: TypeAlias = Mapping[str, HostArray]
"""The inputs of one model call by name, on the host."""


@dataclass(frozen=True)
class Device:
    """A place for arrays. `to_host` copies to numpy, `from_host` brings a numpy array over (on the CPU: itself)."""

    name: str
    xp: Namespace
    to_host: Callable[[Array], HostArray]
    from_host: Callable[[HostArray], Array]
    contiguous: Callable[[Array], Array]

    @property
    def is_host(self) -> bool:
        """Whether its arrays are numpy arrays, so that nothing has to be transferred."""
        return self.xp is numpy_namespace


def _in_order(xp: Namespace) -> Callable[[Array], Array]:
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


def dtype_of(xp: Namespace, name: str) -> Any:
    """The namespace's dtype for a numpy dtype name ("float32", "int64", "bool", ...)."""
    return getattr(xp, name)


def dtype_name(array: Array) -> str:
    """The numpy name of an array's dtype, whatever namespace it is from."""
    return str(array.dtype).rpartition(".")[2]


def silence() -> AbstractContextManager[object]:
    """Let overflow to infinity and operations on NaN pass without a warning: graphs rely on both."""
    return np.errstate(all="ignore")


def _cuda() -> Device:
    try:
        import array_api_compat.cupy as cupy_namespace
        import cupy
    except ImportError as error:
        raise UsageError("device 'cuda' needs cupy; install the extra: pip install 'warmcold[cuda12]'") from error
    return Device("cuda", cupy_namespace, cupy.asnumpy, cupy.asarray, _in_order(cupy))

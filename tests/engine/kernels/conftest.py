"""Devices on which every kernel must run: numpy, and the array API's strict implementation in two fake places.

Strict arrays raise wherever a kernel leaves the standard. Those on "device1" cannot become numpy arrays at all; those
on the fake CPU could, so the two doors to an implicit conversion are locked for the time of a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

from warmcold.engine.contract.arrays import HOST, Device, silence
from warmcold.engine.kernels.arithmetic import Anchored, Free
from warmcold.engine.kernels.call import Call
from warmcold.engine.kernels.node import Node
from warmcold.engine.kernels.table import find_kernel

Apply = Callable[..., Any]
CREATE = ("zeros", "full", "arange", "asarray", "ones", "empty")


class PlacedNamespace:
    """array_api_strict whose new arrays land on one device, and whose dtypes may be given as numpy's."""

    def __init__(self, place: Any) -> None:
        self._place = place

    def __getattr__(self, name: str) -> Any:
        found = getattr(strict, name)
        return self._creator(found) if name in CREATE else found

    def _creator(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, dtype: Any = None, **keywords: Any) -> Any:
            named = getattr(strict, dtype.name) if isinstance(dtype, np.dtype) else dtype
            return create(*args, dtype=named, device=self._place, **keywords)

        return run


def strict_device(place: Any) -> Device:
    """A `Device` of strict arrays on `place`; DLPack is the explicit way out."""

    def to_host(array: Any) -> Any:
        if isinstance(array, np.ndarray | np.generic):
            return np.asarray(array)
        return np.from_dlpack(array.to_device(strict.Device("CPU_DEVICE")))

    def from_host(array: Any) -> Any:
        return strict.asarray(np.array(array)).to_device(place)

    return Device(f"strict {place}", PlacedNamespace(place), to_host, from_host, lambda array: array)


DEVICES = {
    "numpy": HOST,
    "strict-cpu": strict_device(strict.Device("CPU_DEVICE")),
    "strict-device1": strict_device(strict.Device("device1")),
}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Each device in turn; an implicit conversion of its arrays to numpy raises."""

    def locked(*_: Any, **__: Any) -> Any:
        raise AssertionError("a kernel converted a device array to the host by accident")

    for door in ("__array__", "__buffer__"):
        monkeypatch.setattr(type(strict.asarray(0.0)), door, locked, raising=False)
    return DEVICES[request.param]


def applied(
    device: Device,
    op_type: str,
    *inputs: Any,
    version: int = 21,
    domain: str = "",
    outputs: int = 1,
    numerics: str = "invariant",
    known: tuple[int, ...] = (),
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Run one kernel on `device` with numpy `inputs` (None: omitted) and bring its outputs back.

    `known` are the inputs that count as constants while the kernel is built.
    """
    node = Node(
        op_type,
        domain,
        "tested",
        tuple("" if value is None else f"in{index}" for index, value in enumerate(inputs)),
        tuple(f"out{index}" for index in range(outputs)),
        attributes or {},
        version,
    )
    kernel = find_kernel(domain, op_type, version)
    assert kernel is not None
    constants = tuple(value if index in known else None for index, value in enumerate(inputs))
    math = Anchored(device, 8) if numerics == "invariant" else Free(device)
    run = kernel.build(Call(node=node, device=device, math=math, constants=constants))
    moved = [
        value if index in kernel.host or not isinstance(value, np.ndarray) else device.from_host(value)
        for index, value in enumerate(inputs)
    ]
    with silence():
        result = run(*moved)
    if isinstance(result, tuple) and outputs == 1:
        result = result[0]
    if isinstance(result, tuple):
        return tuple(value if value is None else device.to_host(value) for value in result)
    return device.to_host(result)


@pytest.fixture
def apply(device: Device) -> Apply:
    """`apply(op_type, *inputs, ...)` runs one kernel on the current device."""

    def run(op_type: str, *inputs: Any, **options: Any) -> Any:
        return applied(device, op_type, *inputs, **options)

    return run

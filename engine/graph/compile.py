"""Bind a graph to kernels: from `GraphModel` to `CompiledModel`.

Where a value lives follows one rule: integer and boolean inputs, constants of up to 64 elements, shapes, and whatever
is computed from these alone stay on the host; everything else is on the device. So shape arithmetic never waits for a
device. A host value that meets a device value is sent over, once per run (a constant once per plan). On the CPU the two
places are one and nothing is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..contract.arrays import HOST, Array, Device, HostArray, find_device
from ..contract.errors import UsageError
from ..kernels.arithmetic import Anchored, Arithmetic, Free
from ..kernels.call import Call, Kernel, Kind, narrow_name
from ..kernels.node import Node, Port
from ..kernels.probing import largest_tile
from ..kernels.table import kernel_of
from .library import Library
from .load import GraphModel
from .passes import Constants, Place, live_nodes, with_appends
from .plan import CompiledModel, Plan, Step
from .precision import Precision
from .signature import PortPairs, Signature

SMALL = 64
NUMERICS = ("invariant", "fast")


def compile_model(
    graph: GraphModel, signature: Signature, *, device: str | Device = "cpu", numerics: str = "invariant"
) -> CompiledModel:
    """Bind `graph` to kernels; `signature` names its ports.

    `numerics` is "invariant" (a position's bits depend on no other row) or "fast". ModelError for an operator that is
    unknown or used in an unknown way, UsageError for an unknown device, numerics or port.
    """
    if numerics not in NUMERICS:
        raise UsageError(f"numerics {numerics!r} is unknown; use 'invariant' or 'fast'")
    _check_ports(graph, signature)
    place = device if isinstance(device, Device) else find_device(device)
    wanted = list(dict.fromkeys([signature.logits, *(port.name for port in graph.outputs)]))
    constants, library = Constants(graph), Library(graph)
    nodes = with_appends(live_nodes(graph.nodes, wanted), _layers(signature.past), _layers(signature.present))
    nodes = live_nodes(constants.fold(nodes, library.evaluate), wanted)
    read = {name for node in nodes for name in node.inputs} | set(wanted)
    past = _past_kinds(signature)
    inputs = tuple(port for port in graph.inputs if port.name in read and port.name not in past)
    weights = {node.outputs[0]: weight for node in nodes if (weight := _weight(node, constants)) is not None}
    mathematics, tile = _arithmetic(place, list(weights.values()), numerics)
    compiler = _Compiler(inputs, past, mathematics, constants, library)
    head = None
    for node in nodes:
        compiler.add(node)
        if node.outputs[0] == signature.logits and signature.logits in weights:
            head = len(compiler.steps) - 1
    return CompiledModel(
        device=place,
        numerics=numerics,
        tile=tile,
        inputs=inputs,
        signature=signature,
        fallbacks=dict(compiler.fallbacks),
        plan=compiler.finished(wanted, head),
    )


def _weight(node: Node, constants: Constants) -> HostArray | None:
    kernel = kernel_of(node)
    if kernel is None or kernel.weight is None:
        return None
    return kernel.weight(node, constants.wide(node.inputs[1]))


def _past_kinds(signature: Signature) -> dict[str, Kind]:
    """The past ports, in order, and the 16-bit float in which each is stored, if it is."""
    pairs = zip(signature.past, signature.states, strict=True)
    return {name: narrow_name(layer.dtype) for pair, layer in pairs for name in pair}


@dataclass(frozen=True)
class _Place:
    """A device, and how to compute there."""

    device: Device
    math: Arithmetic


def _arithmetic(
    device: Device, weights: Sequence[HostArray], numerics: str
) -> tuple[tuple[_Place, _Place], int | None]:
    """The host and the device with their arithmetic, and the row tile that the device's BLAS allows."""
    if numerics == "fast":
        return (_Place(HOST, Free(HOST)), _Place(device, Free(device))), None
    shapes = {weight.shape: weight for weight in weights}
    tile = largest_tile(device, [device.from_host(canonical(weight)) for weight in shapes.values()])
    host_tile = tile if device.is_host else largest_tile(HOST, [])
    return (_Place(HOST, Anchored(HOST, host_tile)), _Place(device, Anchored(device, tile))), tile


def canonical(value: HostArray) -> HostArray:
    """The value contiguous and aligned, in place if it is: BLAS takes its fast path, and always the same one."""
    return np.require(value, requirements=["C", "A"])


def _layers(pairs: PortPairs) -> dict[str, Place]:
    return {name: (layer, part) for layer, pair in enumerate(pairs) for part, name in enumerate(pair)}


def _check_ports(graph: GraphModel, signature: Signature) -> None:
    inputs, outputs = ({port.name for port in ports} for ports in (graph.inputs, graph.outputs))
    made = (*_layers(signature.present), signature.logits)
    for what, names, known in (("input", _layers(signature.past), inputs), ("output", made, outputs)):
        for name in names:
            if name not in known:
                raise UsageError(f"{graph.path}: no {what} {name!r}; the model has {sorted(known)}")


class _Compiler:
    """What accumulates while steps are made: where each value is, the transfers already there, the fallbacks."""

    def __init__(
        self,
        inputs: Sequence[Port],
        past: Mapping[str, Kind],
        places: tuple[_Place, _Place],
        constants: Constants,
        library: Library,
    ) -> None:
        self._host, self._away = places
        self.device = self._away.device
        self.steps: list[Step] = []
        self.fallbacks: Counter[str] = Counter()
        self._constants, self._library = constants, library
        fed = {port.name: narrow_name(port.dtype) for port in inputs}
        kinds = {name: kind for name, kind in {**past, **fed}.items() if kind}
        self._precision = Precision(kinds, self._constant_kind)
        self._values: list[Array | None] = []
        self._places: dict[tuple[str, bool], int] = {}
        self._on_host: set[str] = set()
        self.slots = {name: self._new() for name in past}
        self.feeds = {port.name: self._new() for port in inputs}
        self._places.update(((name, True), place) for name, place in self.feeds.items())
        self._on_host.update(port.name for port in inputs if not port.dtype.startswith(("float", "bfloat")))

    def add(self, node: Node) -> None:
        """Bind one node, where its inputs are."""
        kernel, slow = self._library.find(node)
        self.fallbacks.update([node.op_type] if slow else [])
        slots = {index for index, _ in kernel.presents(node) if node.inputs[index] in self.slots}
        away = not self.device.is_host and (bool(slots) or self._needs_device(node, kernel))
        place = self._away if away else self._host
        known = tuple(self._constants.wide(name) for name in node.inputs)
        run = kernel.build(Call(node=node, device=place.device, math=place.math, constants=known))
        run = self._precision.bound(node, kernel, run, slots, place.device)
        inputs = tuple(self._input(name, index, index in slots, away, kernel) for index, name in enumerate(node.inputs))
        here = not away or kernel.host_output
        outputs = tuple(self._made(name, here) if name else None for name in node.outputs)
        self.steps.append(Step(str(node), run, inputs, outputs))

    def finished(self, wanted: Sequence[str], head: int | None) -> Plan:
        """The plan, with every value dropped after its last use."""
        results = {name: self._places.get((name, False)) or self._place(name, True) for name in wanted}
        fixed = {place for place, value in enumerate(self._values) if value is not None}
        return Plan(
            steps=with_releases(self.steps, fixed | set(results.values())),
            values=tuple(self._values),
            feeds=self.feeds,
            slots=self.slots,
            results=results,
            head=head,
        )

    def _input(self, name: str, index: int, slot: bool, away: bool, kernel: Kernel) -> int | None:
        if not name:
            return None
        return self.slots[name] if slot else self._place(name, not away or index in kernel.host)

    def _made(self, name: str, here: bool) -> int:
        if here:
            self._on_host.add(name)
        self._places[name, here] = self._new()
        return self._places[name, here]

    def _needs_device(self, node: Node, kernel: Kernel) -> bool:
        computed = (name for index, name in enumerate(node.inputs) if name and index not in kernel.host)
        return any(name not in self._on_host and not self._is_small(name) for name in computed)

    def _constant_kind(self, name: str) -> Kind:
        value = self._constants.find(name)
        return None if value is None else narrow_name(value.dtype.name)

    def _is_small(self, name: str) -> bool:
        return name in self._constants and self._constants[name].size <= SMALL

    def _new(self, value: Array | None = None) -> int:
        self._values.append(value)
        return len(self._values) - 1

    def _place(self, name: str, host: bool) -> int:
        """Where `name` is found on the host or the device; adds the step that brings it there."""
        host = host or self.device.is_host
        if (name, host) not in self._places:
            if (constant := self._constants.wide(name)) is not None:
                value = canonical(constant)
                self._places[name, host] = self._new(value if host else self.device.from_host(value))
            else:
                source, move = self._source(name, host)
                self._places[name, host] = self._new()
                self.steps.append(Step(f"transfer of {name!r}", move, (source,), (self._places[name, host],)))
        return self._places[name, host]

    def _source(self, name: str, host: bool) -> tuple[int, Callable[[Array], Array]]:
        if name in self.slots and host == self.device.is_host:
            return self.slots[name], lambda slot: slot.past()
        return self._place(name, not host), self.device.to_host if host else self.device.from_host


def with_releases(steps: Sequence[Step], kept: set[int]) -> tuple[Step, ...]:
    """The steps with `release` set: a value goes after its last use, unless it is in `kept`."""
    last: dict[int, int] = {}
    for index, step in enumerate(steps):
        last.update((place, index) for place in (*step.inputs, *step.outputs) if place is not None)
    release: dict[int, list[int]] = {}
    for place, index in last.items():
        if place not in kept:
            release.setdefault(index, []).append(place)
    return tuple(
        Step(step.label, step.run, step.inputs, step.outputs, tuple(release.get(index, ())))
        for index, step in enumerate(steps)
    )

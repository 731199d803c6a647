"""Operators that compute each element on its own: arithmetic, comparison, logic, selection, casts.

Source: ONNX operator specification. Broadcasting is NumPy's from opset 7 on, so no entry is older.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ..contract.arrays import Array, dtype_name, dtype_of
from .call import Call, Kernel, Kind, Run, Table, no_float, versions
from .node import Node

# TensorProto.DataType: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_CAST_TARGETS = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "float32",  # bfloat16: the plan rounds what a node is declared to give in 16 bits
}


def direct(name: str, *, moves: bool = False) -> Kernel:
    """The namespace's function of that name, correctly rounded and so the same on any memory layout."""
    return Kernel(lambda call: getattr(call.xp, name), moves=moves)


def truth(name: str) -> Kernel:
    """The namespace's function of that name, which gives booleans."""
    return Kernel(lambda call: getattr(call.xp, name), kind=no_float)


def transcendental(name: str) -> Kernel:
    """The namespace's function of that name on contiguous memory (one code path, hence one rounding)."""

    def build(call: Call) -> Run:
        function, contiguous = getattr(call.xp, name), call.device.contiguous
        return lambda x: function(contiguous(x))

    return Kernel(build)


def variadic(name: str, *, moves: bool = False) -> Kernel:
    """A binary function of the namespace folded over all inputs from the left."""

    def build(call: Call) -> Run:
        function = getattr(call.xp, name)
        return lambda *inputs: reduce(function, inputs)

    return Kernel(build, moves=moves)


def _divide(call: Call) -> Run:
    xp = call.xp

    def run(a: Array, b: Array) -> Array:
        if dtype_name(a).startswith("float"):
            return xp.divide(a, b)
        quotient = xp.floor_divide(a, b)  # ONNX truncates towards zero
        inexact = xp.not_equal(quotient * b, a)
        return xp.where(xp.logical_and(xp.less(quotient, 0), inexact), quotient + 1, quotient)

    return run


def _power(call: Call) -> Run:
    xp, contiguous, exponent = call.xp, call.device.contiguous, call.constant(1)
    if exponent is not None and exponent.size == 1 and exponent.item() == 2:
        return lambda x, _: x * x  # one rounding, in every layout

    def run(x: Array, y: Array) -> Array:
        return xp.pow(contiguous(x), xp.astype(y, x.dtype))

    return run


def _modulo(call: Call) -> Run:
    xp = call.xp
    if not call.attribute("fmod", 0):
        return xp.remainder  # type: ignore[no-any-return]

    def run(a: Array, b: Array) -> Array:
        rest = xp.remainder(xp.abs(a), xp.abs(b))  # exact; the sign is the dividend's, as in C
        return xp.where(xp.less(a, xp.zeros_like(a)), -rest, rest)

    return run


def _cast(call: Call) -> Run:
    target = _CAST_TARGETS.get(call.attribute("to"))
    if target is None:
        raise call.refuse(f"a cast to TensorProto type {call.attribute('to')}")
    astype, dtype = call.xp.astype, dtype_of(call.xp, target)
    return lambda x: astype(x, dtype)


def _cast_kind(node: Node, inputs: Sequence[Kind]) -> Kind:
    return {10: "float16", 16: "bfloat16"}.get(node.attributes["to"])


def _cast_like(call: Call) -> Run:
    astype = call.xp.astype
    return lambda x, like: astype(x, like.dtype)


def _clip(call: Call) -> Run:
    xp = call.xp

    def run(x: Array, low: Array = None, high: Array = None) -> Array:
        x = x if low is None else xp.maximum(x, low)
        return x if high is None else xp.minimum(x, high)

    return run


def _identity(call: Call) -> Run:
    return lambda x, *_: x


def _entries(kernels: dict[str, Kernel], *since: int) -> Table:
    return {key: value for name, kernel in kernels.items() for key, value in versions(name, kernel, *since).items()}


_BINARY = {
    "Add": direct("add"),
    "Sub": direct("subtract"),
    "Mul": direct("multiply"),
    "Div": Kernel(_divide),
    "And": truth("logical_and"),
    "Or": truth("logical_or"),
    "Xor": truth("logical_xor"),
    "Equal": truth("equal"),
    "Less": truth("less"),
    "Greater": truth("greater"),
    "Pow": Kernel(_power),
}

TABLE: Table = {
    **_entries(_BINARY, 7),
    **_entries({"LessOrEqual": truth("less_equal"), "GreaterOrEqual": truth("greater_equal")}, 12),
    **_entries({"Neg": direct("negative", moves=True), "Abs": direct("abs", moves=True), "Sqrt": direct("sqrt")}, 6),
    **_entries(
        {"Floor": direct("floor", moves=True), "Ceil": direct("ceil", moves=True), "Not": truth("logical_not")}, 1
    ),
    **_entries({"Exp": transcendental("exp"), "Log": transcendental("log")}, 6),
    **_entries({"Sin": transcendental("sin"), "Cos": transcendental("cos")}, 7),
    **_entries(
        {"Max": variadic("maximum", moves=True), "Min": variadic("minimum", moves=True), "Sum": variadic("add")}, 8
    ),
    **_entries({"Sign": direct("sign"), "IsNaN": truth("isnan"), "Where": direct("where", moves=True)}, 9),
    **_entries({"Mod": Kernel(_modulo)}, 10),
    **_entries({"Round": direct("round", moves=True)}, 11),
    **_entries({"Clip": Kernel(_clip)}, 11),
    **_entries({"Cast": Kernel(_cast, kind=_cast_kind)}, 6),
    **_entries({"CastLike": Kernel(_cast_like, kind=lambda node, inputs: inputs[1])}, 15),
    **_entries({"Identity": Kernel(_identity, moves=True)}, 1),
}

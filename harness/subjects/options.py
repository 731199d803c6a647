"""An adapter's options as a frozen struct, made from the texts that `--option NAME=VALUE` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect, structs

from ..contract.errors import SubjectError

StructT = TypeVar("StructT", bound=Struct)
Natural = Annotated[int, Meta(ge=0)]
Positions = Annotated[int, Meta(ge=1, description="positions")]


def converted(kind: type[StructT], given: Mapping[str, object], subject: str) -> StructT:
    """`given` as a `kind`; texts become what its fields are. SubjectError with the option, its value and what may be given."""
    offered = {field.name: field.type for field in structs.fields(kind)}
    values = {}
    for name, value in given.items():
        if name not in offered:
            every = "; ".join(f"{known}: {_offer(offered[known])}" for known in offered)
            raise SubjectError(f"unknown option {name}={value}: {subject} takes {every}")
        try:
            values[name] = msgspec.convert(value, offered[name], strict=False)
        except msgspec.ValidationError:
            raise SubjectError(f"option {name}={value}: give {_offer(offered[name])}") from None
    return kind(**values)


def texts(options: Struct) -> dict[str, str | int | float]:
    """Those that are set, by name, as a report shows them: truth values as they are given."""
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in structs.asdict(options).items()
        if value is not None
    }


def _offer(kind: object) -> str:
    """What a field of this type may be given, in words."""
    return _words(inspect.type_info(kind), "")


def _words(kind: inspect.Type, unit: str) -> str:
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=more):
            return _words(inner, f" of {(more or {})['description']}")
        case inspect.UnionType(types=types):
            return " or ".join(_words(each, unit) for each in types if not isinstance(each, inspect.NoneType))
        case inspect.LiteralType(values=values):
            return " or ".join(map(str, values))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=least):
            return f"a whole number{unit}" + (f", {least} or more" if least is not None else "")
        case inspect.FloatType(gt=least, le=most):
            return f"a number{unit}, more than {least}, at most {most}"
    return "a text"

"""Reading what people write: JSON into frozen structs, unknown fields refused, each error with its place and its value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import DataError

T = TypeVar("T")
Json = Mapping[str, object]
"""A JSON object as plain data."""

_PLACE = re.compile(r" - at `(.+)`$")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def converted(data: object, kind: type[T], error: type[DataError]) -> T:
    """`data` as a `kind`; else `error`, with the place, what stands there and what was expected."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as refused:
        text = str(refused)
        place = match.group(1) if (match := _PLACE.search(text)) else "$"
        expected = _PLACE.sub("", text)
        where = place.removeprefix("$").removeprefix(".") or "the file"
        raise error(f"{where}: {expected}, found {_at(data, place)!r:.80}; docs/formats.md has the format") from None


def read(file: Path, error: type[DataError]) -> object:
    """The JSON in `file`, or `error`, with the file's name."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as refused:
        raise error(f"{file}: cannot be read ({refused.strerror}); give the path of a JSON file") from refused
    except (ValueError, RecursionError) as refused:
        raise error(f"{file}: not JSON ({refused})") from refused


def _at(data: object, place: str) -> object:
    """What stands at a place like `$.ops[0].keep`; the whole where the path leads nowhere (a key is missing, say)."""
    at = data
    for name, index in _STEP.findall(place):
        if name and isinstance(at, dict) and name in at:
            at = at[name]
        elif index and isinstance(at, (list, tuple)) and int(index) < len(at):
            at = at[int(index)]
        else:
            break
    return at

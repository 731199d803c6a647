"""A canonical digest of everything that conditions the KV beside the tokens themselves.

Two requests may share KV only under the same identity. Fields are hashed length-prefixed with name, type, dtype and shape,
so that no two different sets of fields have the same encoding: moving a character from one field to the next, -0.0 against
0.0, None against empty, a transposed view against its copy all do what their values say. What cannot be canonicalised has
no identity (None): nothing is looked up, published or retained for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..contract.arrays import HostArray
from ..contract.request import Identity

_CHUNK = 1 << 22


def identity_of(fields: Mapping[str, Any]) -> Identity | None:
    """blake2b-256 of the named fields (order of names does not matter), or None where a value has no canonical form.

    Values: None, bool, int, float, str, bytes, numpy arrays of bool, integer and float kinds, and (nested) tuples, lists
    and string-keyed mappings of these.
    """
    digest = hashlib.blake2b(digest_size=32)
    try:
        _feed(digest, fields)
    except _NotCanonicalError:
        return None
    return digest.digest()


def file_digest(paths: list[Path]) -> bytes:
    """blake2b-256 over the length and content of each file, in the order given."""
    digest = hashlib.blake2b(digest_size=32)
    for path in paths:
        _block(digest, b"file", str(path.stat().st_size).encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.digest()


class _NotCanonicalError(Exception):
    pass


def _block(digest: Any, tag: bytes, payload: bytes) -> None:
    digest.update(tag + b":" + str(len(payload)).encode() + b":" + payload)


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        _block(digest, b"map", str(len(value)).encode())
        if not all(isinstance(name, str) for name in value):
            raise _NotCanonicalError
        for name in sorted(value):
            _block(digest, b"name", name.encode())
            _feed(digest, value[name])
    elif isinstance(value, (tuple, list)):
        _block(digest, b"seq", str(len(value)).encode())
        for item in value:
            _feed(digest, item)
    else:
        _leaf(digest, value)


def _leaf(digest: Any, value: Any) -> None:
    if value is None:
        _block(digest, b"none", b"")
    elif isinstance(value, (bool, np.bool_)):
        _block(digest, b"bool", b"1" if value else b"0")
    elif isinstance(value, (int, np.integer)):
        _block(digest, b"int", str(int(value)).encode())
    elif isinstance(value, float):
        _feed_array(digest, b"float", np.asarray(value, dtype=np.float64))
    elif isinstance(value, str):
        _block(digest, b"str", value.encode())
    elif isinstance(value, bytes):
        _block(digest, b"bytes", value)
    elif isinstance(value, (np.ndarray, np.generic)):
        _feed_array(digest, b"array", np.asarray(value))
    else:
        raise _NotCanonicalError


def _feed_array(digest: Any, tag: bytes, array: HostArray) -> None:
    if array.dtype.kind not in "biuf":
        raise _NotCanonicalError
    if array.dtype.kind == "f":
        # -0.0 and 0.0 condition a model alike, and so do all NaN payloads.
        with np.errstate(invalid="ignore"):  # a signalling NaN would warn
            array = np.where(np.isnan(array), np.full_like(array, np.nan), array + array.dtype.type(0))
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    _block(digest, tag, f"{little.dtype.str}{array.shape}".encode())
    _block(digest, b"data", little.tobytes())

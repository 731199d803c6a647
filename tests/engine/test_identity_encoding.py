"""The canonical encoding behind an identity, spelled out byte by byte: `tag:length:payload`, one block after the other."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warmcold.engine.turn.identity import file_digest, identity_of


def blake(text: bytes) -> bytes:
    """blake2b-256."""
    return hashlib.blake2b(text, digest_size=32).digest()


def floats(*values: float) -> bytes:
    """Little-endian doubles."""
    return np.array(values, "<f8").tobytes()


@pytest.mark.parametrize(
    ("value", "encoding"),
    [
        (None, b"none:0:"),
        (True, b"bool:1:1"),
        (False, b"bool:1:0"),
        (np.True_, b"bool:1:1"),
        (0, b"int:1:0"),
        (-12, b"int:3:-12"),
        (np.int16(7), b"int:1:7"),
        ("aé", b"str:3:a\xc3\xa9"),
        (b"\x00a", b"bytes:2:\x00a"),
        (2.5, b"float:5:<f8()data:8:" + floats(2.5)),
        (1.0, b"float:5:<f8()data:8:" + floats(1.0)),
        (np.array([1, 2], "<i2"), b"array:7:<i2(2,)data:4:\x01\x00\x02\x00"),
        (np.array([[1.5]], ">f8"), b"array:9:<f8(1, 1)data:8:" + floats(1.5)),
        (np.array(True), b"array:5:|b1()data:1:\x01"),
        (np.array([3], "<u4"), b"array:7:<u4(1,)data:4:\x03\x00\x00\x00"),
        (np.float32(1.0), b"array:5:<f4()data:4:\x00\x00\x80\x3f"),
        ((), b"seq:1:0"),
        ([1, "b"], b"seq:1:2int:1:1str:1:b"),
        ({"b": 1, "a": None}, b"map:1:2name:1:anone:0:name:1:bint:1:1"),
    ],
)
def test_every_kind_of_value_has_its_block(value: Any, encoding: bytes) -> None:
    """Tag, length and content; a float is a 64-bit array without axes; names of a mapping come in order."""
    assert identity_of({"x": value}) == blake(b"map:1:1name:1:x" + encoding)


def test_zero_has_one_sign_and_nan_one_payload() -> None:
    """What conditions a model alike is encoded alike: +0.0, and numpy's own NaN."""
    odd = np.array([0x7FF8000000000001, 0xFFFFFFFFFFFFFFFF, 0x8000000000000000], np.uint64).view(np.float64)
    block = b"array:7:<f8(3,)data:24:" + floats(np.nan, np.nan, 0.0)
    assert identity_of({"x": odd}) == blake(b"map:1:1name:1:x" + block)


def test_a_signalling_nan_is_a_nan_and_no_warning() -> None:
    """It has the identity of any other NaN, and saying so raises no floating-point warning."""
    signalling = np.array([0x7FF0000000000001], np.uint64).view(np.float64)
    assert identity_of({"x": signalling}) == identity_of({"x": np.array([np.nan])})


def test_an_empty_mapping_is_an_identity() -> None:
    """No fields is a fact like another."""
    assert identity_of({}) == blake(b"map:1:0")


@pytest.mark.parametrize("kind", ["datetime64[s]", "complex64", "S1"])
def test_arrays_of_other_kinds_have_no_canonical_form(kind: str) -> None:
    """Only bool, integers and floats are defined."""
    assert identity_of({"x": np.zeros(1, kind)}) is None


def test_files_are_hashed_with_their_lengths(tmp_path: Path) -> None:
    """One block a file with its size, then its content; blake2b-256 over all, in the order given."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"abc")
    two.write_bytes(b"")
    assert file_digest([one, two]) == blake(b"file:1:3abc" + b"file:1:0")
    assert file_digest([two, one]) == blake(b"file:1:0" + b"file:1:3abc")


def test_a_file_longer_than_one_read_is_hashed_whole(tmp_path: Path) -> None:
    """Every piece counts, the last byte too."""
    path = tmp_path / "weights"
    content = bytes(range(256)) * (1 << 15)  # 8 MiB: more than one piece
    path.write_bytes(content + b"!")
    assert file_digest([path]) == blake(b"file:7:8388609" + content + b"!")

"""Identity: equal digests exactly for what conditions the KV alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from warmcold.engine.turn.identity import file_digest, identity_of

SAME = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"x": np.float32(-0.0) * np.ones(2, np.float32)}, {"x": np.zeros(2, np.float32)}),
    ({"x": np.array([np.nan, 1.0])}, {"x": np.array([-np.nan, 1.0])}),
    ({"x": np.arange(6).reshape(2, 3).T}, {"x": np.ascontiguousarray(np.arange(6).reshape(2, 3).T)}),
    ({"x": np.arange(3, dtype=">i4")}, {"x": np.arange(3, dtype="<i4")}),
    ({"x": (1, 2)}, {"x": [1, 2]}),
]
DIFFERENT = [
    ({"salt": "ab", "name": "c"}, {"salt": "a", "name": "bc"}),
    ({"salt": None}, {"salt": ""}),
    ({"salt": ""}, {}),
    ({"salt": "1"}, {"salt": 1}),
    ({"salt": 1}, {"salt": True}),
    ({"salt": 1}, {"salt": 1.0}),
    ({"salt": b"a"}, {"salt": "a"}),
    ({"x": np.zeros((2, 3))}, {"x": np.zeros((3, 2))}),
    ({"x": np.zeros(2, np.float32)}, {"x": np.zeros(2, np.float64)}),
    ({"x": np.zeros(2, np.int32)}, {"x": np.zeros(2, np.float32)}),
    ({"x": [[1], [2]]}, {"x": [[1, 2]]}),
    ({"x": []}, {"x": None}),
    ({"x": {"a": 1}}, {"x": ["a", 1]}),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_what_means_the_same_has_one_identity(left: dict[str, object], right: dict[str, object]) -> None:
    """Order of names, sign of zero, NaN payload, memory order, byte order and tuple against list do not matter."""
    assert identity_of(left) == identity_of(right) is not None


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_what_differs_has_two(left: dict[str, object], right: dict[str, object]) -> None:
    """A character moved to the next field, None against empty, type, dtype and shape each make another identity."""
    assert identity_of(left) != identity_of(right)


@pytest.mark.parametrize("value", [object(), {1: 2}, np.array(["a"]), {"a": [object()]}, {1, 2}])
def test_what_has_no_canonical_form_has_no_identity(value: object) -> None:
    """Such a request is neither looked up, published nor retained."""
    assert identity_of({"salt": value}) is None


def test_file_digest_sees_content_and_boundaries(tmp_path: Path) -> None:
    """The same bytes split differently over two files are another model."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"ab")
    two.write_bytes(b"c")
    first = file_digest([one, two])
    one.write_bytes(b"a")
    two.write_bytes(b"bc")
    assert file_digest([one, two]) != first

"""Which examples the property tests play: the same ones every time, and in a soak fresh ones that can be had again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DRAWING = """
import zlib

from hypothesis import given
from hypothesis import strategies as st

drawn = []

@given(st.integers())
def test_draws(n):
    drawn.append(n)

def test_shows():
    print(f"{len(drawn)} drawn: {zlib.crc32(repr(drawn).encode())}")
"""


@pytest.fixture
def play(pytester: pytest.Pytester) -> re.Pattern[str]:
    """The suite's own conftest over a test that draws."""
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(DRAWING)
    return re.compile(r"(\d+) drawn: (\d+)")


def seen(pytester: pytest.Pytester, pattern: re.Pattern[str], *options: str) -> tuple[str, int, str]:
    """The header's word on examples, and how many and which examples were played."""
    out = pytester.runpytest_subprocess("-s", "-p", "no:cacheprovider", *options).stdout.str()
    (header,) = [line for line in out.splitlines() if line.startswith("examples: ")]
    found = pattern.search(out)
    assert found is not None, out
    return header, int(found[1]), found[2]


def test_the_examples_are_the_same_every_time(pytester: pytest.Pytester, play: re.Pattern[str]) -> None:
    """No luck in `make test` and in CI, and the header says so."""
    first, again = (seen(pytester, play) for _ in range(2))
    assert first == again
    assert "profile fixed, derandomized" in first[0]


def test_a_soak_is_fresh_and_can_be_had_again(pytester: pytest.Pytester, play: re.Pattern[str]) -> None:
    """More examples than usual, from a seed that the header says; with that seed the same ones."""
    header, count, drawn = seen(pytester, play, "--hypothesis-profile", "soak")
    seed = header.rpartition(" ")[2]
    assert count > 500
    assert seen(pytester, play, "--hypothesis-profile", "soak", "--hypothesis-seed", seed) == (header, count, drawn)
    assert seen(pytester, play, "--hypothesis-profile", "soak")[2] != drawn

"""The parity test for any model: `pytest --pyargs warmcold.harness.pytest_plugin.parity -m parity --warmcold-model DIR`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .plugin import Judge


@pytest.mark.parity
def test_parity(warmcold_model: Path, warmcold_backend: str, warmcold_verify: Judge) -> None:
    """Warm = matched = cold = oracle on generated conversations, tokens and KV bytes, after every turn."""
    warmcold_verify(warmcold_model, warmcold_backend)

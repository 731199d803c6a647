"""The one table of operators: (domain, op_type, since_version) -> kernel."""

from __future__ import annotations

from . import (
    activation,
    attention,
    elementwise,
    gather,
    matmul,
    normalisation,
    reduce,
    rotary,
    shape,
    standard_attention,
)
from .call import Kernel, Table

_FAMILIES = (
    activation,
    attention,
    elementwise,
    gather,
    matmul,
    normalisation,
    reduce,
    rotary,
    shape,
    standard_attention,
)

TABLE: Table = {key: kernel for family in _FAMILIES for key, kernel in family.TABLE.items()}


def find_kernel(domain: str, op_type: str, version: int) -> Kernel | None:
    """The newest kernel that is not newer than opset `version` of `domain`, or None."""
    fitting = [since for (d, op, since) in TABLE if (d, op) == (domain, op_type) and since <= version]
    return TABLE[domain, op_type, max(fitting)] if fitting else None

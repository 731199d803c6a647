"""The one table of operators: (domain, op_type, since_version) -> kernel."""

from __future__ import annotations

from functools import cache

from . import (
    activation,
    append,
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
from .node import Node

_FAMILIES = (
    activation,
    append,
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


def kernel_of(node: Node) -> Kernel | None:
    """Our kernel of a node, or None."""
    return find_kernel(node.domain, node.op_type, node.version)


@cache
def find_kernel(domain: str, op_type: str, version: int) -> Kernel | None:
    """The newest kernel that is not newer than opset `version` of `domain`, or None."""
    fitting = [since for (d, op, since) in TABLE if (d, op) == (domain, op_type) and since <= version]
    return TABLE[domain, op_type, max(fitting)] if fitting else None

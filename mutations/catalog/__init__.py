"""The catalogue of faults, one module for each file of the engine that they are planted in."""

from __future__ import annotations

from ..mutant import Mutant
from . import (
    attention,
    buffers,
    components,
    decoder,
    engine,
    identity,
    layout,
    loop,
    mirror,
    ort,
    pages,
    prefix_cache,
    reuse,
    session,
    stopping,
    turn,
)

MUTANTS: tuple[Mutant, ...] = (
    *reuse.MUTANTS,
    *components.MUTANTS,
    *turn.MUTANTS,
    *session.MUTANTS,
    *loop.MUTANTS,
    *stopping.MUTANTS,
    *decoder.MUTANTS,
    *identity.MUTANTS,
    *engine.MUTANTS,
    *mirror.MUTANTS,
    *layout.MUTANTS,
    *pages.MUTANTS,
    *prefix_cache.MUTANTS,
    *buffers.MUTANTS,
    *ort.MUTANTS,
    *attention.MUTANTS,
)
"""Every mutant, in the order in which a request passes the files."""

"""A complete ONNX text-generation engine that keeps and reuses KV: the subject that warmcold's harness judges."""

from .contract.errors import BackendError, ModelError, UsageError, WarmcoldError
from .contract.request import Completion, GateReason, MirrorStop, SamplingParams, Step, StopReason
from .engine import Engine, EngineOptions
from .turn.reuse import CutReason, ReuseSource
from .turn.session import Session
from .turn.turn import Turn

__all__ = [
    "BackendError",
    "Completion",
    "CutReason",
    "Engine",
    "EngineOptions",
    "GateReason",
    "MirrorStop",
    "ModelError",
    "ReuseSource",
    "SamplingParams",
    "Session",
    "Step",
    "StopReason",
    "Turn",
    "UsageError",
    "WarmcoldError",
]

"""A complete ONNX text-generation engine that keeps and reuses KV: the subject that warmcold's harness judges."""

from .engine import Engine, EngineOptions
from .errors import BackendError, ModelError, UsageError, WarmcoldError
from .request import Completion, GateReason, MirrorStop, SamplingParams, Step, StopReason
from .reuse import CutReason, ReuseSource
from .session import Session
from .turn import Turn

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

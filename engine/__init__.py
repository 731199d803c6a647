"""A complete ONNX text-generation engine that keeps and reuses KV: the subject that warmcold's harness judges."""

from .contract.errors import BackendError, ModelError, UsageError, WarmcoldError
from .contract.probe import (
    Appending,
    Feeding,
    Growing,
    Mirroring,
    ObservedState,
    Planned,
    Probe,
    ProbeEvent,
    Publishing,
    Rewinding,
    Seeded,
    Stepped,
)
from .contract.request import (
    Completion,
    CutReason,
    GateReason,
    MirrorStop,
    ReuseSource,
    SamplingParams,
    Step,
    StopReason,
)
from .engine import Engine, EngineOptions
from .turn.session import Session
from .turn.turn import Turn

__all__ = [
    "Appending",
    "BackendError",
    "Completion",
    "CutReason",
    "Engine",
    "EngineOptions",
    "Feeding",
    "GateReason",
    "Growing",
    "MirrorStop",
    "Mirroring",
    "ModelError",
    "ObservedState",
    "Planned",
    "Probe",
    "ProbeEvent",
    "Publishing",
    "ReuseSource",
    "Rewinding",
    "SamplingParams",
    "Seeded",
    "Session",
    "Step",
    "Stepped",
    "StopReason",
    "Turn",
    "UsageError",
    "WarmcoldError",
]

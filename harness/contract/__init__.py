"""What a stranger imports: the protocol of an engine under test, what it shows, a conversation as data, what may be concluded."""

from .errors import HarnessError, MaskedError, RefusedError, ScenarioError, SubjectError
from .observation import Call, Kv, Observation, PageKey, Pool, Tokens
from .scenario import Fork, NewSession, Op, Rewind, Scenario, Settings, Turn
from .subject import (
    AnyLoop,
    Capabilities,
    ClosedForm,
    Factory,
    Instance,
    Loop,
    Operation,
    Recompute,
    ReuseModel,
    Subject,
)
from .verdict import CheckResult, Finding, Level, Verdict

__all__ = [
    "AnyLoop",
    "Call",
    "Capabilities",
    "CheckResult",
    "ClosedForm",
    "Factory",
    "Finding",
    "Fork",
    "HarnessError",
    "Instance",
    "Kv",
    "Level",
    "Loop",
    "MaskedError",
    "NewSession",
    "Observation",
    "Op",
    "Operation",
    "PageKey",
    "Pool",
    "Recompute",
    "RefusedError",
    "ReuseModel",
    "Rewind",
    "Scenario",
    "ScenarioError",
    "Settings",
    "Subject",
    "SubjectError",
    "Tokens",
    "Turn",
    "Verdict",
]

"""The error tree. The class says who is at fault; the message says what, where, and what to do next.

    WarmcoldError
    ├── ModelError      the model's files: missing, truncated, not ONNX, an operator we do not know
    ├── UsageError      the caller: a bad prompt, parameter, path or combination; nothing has changed
    └── BackendError    the runtime while it computed; the cause is chained, the session stays usable

`assert` is our own bug.
"""

from __future__ import annotations


class WarmcoldError(Exception):
    """Root of everything this package raises on purpose."""


class ModelError(WarmcoldError):
    """The model's files are at fault. Nothing has been loaded."""


class UsageError(WarmcoldError):
    """The caller is at fault. The session is as it was."""


class BackendError(WarmcoldError):
    """The runtime failed inside a step. The session dropped its state and its next turn is right."""

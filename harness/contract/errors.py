"""The harness's error tree. The class says who is at fault; the message says what, where, and what to do next.

    HarnessError
    ├── DataError          a file that somebody wrote: a case, known divergences; nothing was played
    │   ├── ScenarioError      a case file, or a conversation that this model cannot be given
    │   └── KnownError         a file of known divergences
    ├── SubjectError       the subject cannot be opened: file, option, device, or a package that is missing
    ├── RefusedError       the subject refuses a request, with its reason: an observation, not a crash
    ├── MaskedError        the subject answered although an error planted inside it had struck
    ├── CrashError         the subject raised something else
    └── NotShownError      a finding that does not show a second time

Whatever is none of these, and comes from no subject, is our own bug.
"""

from __future__ import annotations

import traceback
from pathlib import Path


class HarnessError(Exception):
    """Root of everything that the harness raises on purpose."""


class DataError(HarnessError):
    """A file is at fault: says which, which field, its value, and what was expected."""


class ScenarioError(DataError):
    """A scenario that cannot be read or played."""


class KnownError(DataError):
    """A file of known divergences that cannot be read."""


class SubjectError(HarnessError):
    """The subject cannot be opened: its own message says which file, option or device is at fault."""


class RefusedError(HarnessError):
    """A typed refusal of a request (too long, say) with its reason. An observation, not a crash."""


class MaskedError(HarnessError):
    """An error planted inside the engine struck, and the engine answered as if nothing had happened."""


class CrashError(HarnessError):
    """The subject raised something that is neither a refusal nor an error planted in it. `call`: what was asked of it."""

    def __init__(self, call: str, error: BaseException) -> None:
        super().__init__(call)
        self.call = call
        frame = traceback.extract_tb(error.__traceback__)[-1]
        self.text = f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"


class NotShownError(HarnessError):
    """The scenario does not show its finding again, so nothing smaller can be looked for."""

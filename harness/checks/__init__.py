"""One file per property. A check looks at one turn on every arm and says how much it compared and what differed.

Every module of this folder is loaded, and what it declares is in `ALL`, in the order in which a reader wants the news: what
was reused, what was fed, the bytes from the seed outwards, what came out, and the accounting.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from .registry import REGISTRY, Check

for _module in sorted(found.name for found in iter_modules(__path__)):
    import_module(f".{_module}", __name__)

ALL: Mapping[str, Check] = dict(sorted(REGISTRY.items(), key=lambda item: item[1].order))
"""Every check, those that are found while playing among them."""

LOOKED_FOR: Mapping[str, Check] = {name: check for name, check in ALL.items() if check.look is not None}
"""Those that look at each turn."""

ENDS = frozenset(name for name, check in ALL.items() if check.ends)
"""Those after which nothing further can be judged."""

"""One file per property. A check looks at one `TurnRecord` and says how much it compared and what differed.

`ALL` is the registry, in the order in which a reader wants the news: what was reused, what was fed, the bytes from the
seed outwards, what came out, and the accounting. Each check says in its docstring what it cannot see.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..arms.record import Check
from .closed_form import closed_form
from .cold import cold
from .conservation import conservation
from .feeds import feeds
from .kv_end import kv_end
from .kv_pages import kv_pages
from .kv_seed import kv_seed
from .logits import logits
from .oracle import oracle
from .poison import poison
from .reuse import efficiency, reuse
from .tokens import tokens

ALL: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        reuse,
        efficiency,
        feeds,
        kv_seed,
        kv_pages,
        kv_end,
        logits,
        tokens,
        closed_form,
        cold,
        oracle,
        poison,
        conservation,
    )
}

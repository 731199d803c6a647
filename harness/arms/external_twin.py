"""The twin of an engine that is not ours: how much it may reuse, by the reuse model that it declares.

Cannot see: what `Twin` cannot; and, where counts are not shown, anything at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..contract.observation import PageKey, Tokens
from ..contract.subject import ReuseModel
from .compare import common_prefix
from .twin import Prediction, Twin


@dataclass(kw_only=True)
class ForeignTwin(Twin):
    """The bookkeeping of an engine that is not ours: no pages, one prefill call unless it shows another, its own reuse model.

    Scope `session`: the glossary's policy on what the session retains. Scope `engine`: the longest prefix in common with
    any context so far under the same salt, whichever session it was: an upper bound, since an engine may have evicted it.
    """

    model: ReuseModel
    contexts: list[tuple[str | None, Tokens]] = field(default_factory=list)

    def predict(self, session: str, prompt: Tokens, salt: str | None, *, decline_rewind: bool = False) -> Prediction:
        """See `Twin.predict`; the cut is then brought down to what the reuse model admits."""
        plan = super().predict(session, prompt, salt, decline_rewind=decline_rewind)
        reused = plan.reused
        if self.model.scope == "engine" and self.stateful:
            reused = max((common_prefix(prompt, seen) for tenant, seen in self.contexts if tenant == salt), default=0)
        reused = max(min(reused, len(prompt) - self.model.leaves), 0)
        return self.cut(plan, prompt, reused - reused % self.model.granularity)

    def cut(self, plan: Prediction, prompt: Tokens, reused: int) -> Prediction:
        """`plan` with another count of reused positions."""
        rest = len(prompt) - reused
        prefill = (rest,) if self.stateful and rest else ()
        return replace(plan, reused=reused, source="retained" if reused else "none", prefill=prefill, hit=0, cut=0)

    def finish(self, session: str, context: Tokens, fed: Tokens, salt: str | None, was: Prediction) -> set[PageKey]:
        """See `Twin.finish`. A context that was sampled and not fed cannot have been kept."""
        self.contexts.append((salt, fed))
        return super().finish(session, context, fed, salt, was)

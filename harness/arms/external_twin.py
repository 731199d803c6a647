"""The twin of an engine that is set up by nobody here: how much it may reuse, by the reuse model that it declares.

Cannot see: what `Twin` cannot; and, where counts are not shown, anything at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..contract.observation import Observation, PageKey, Tokens
from ..contract.subject import ReuseModel
from .compare import common_prefix
from .twin import Prediction, Twin


@dataclass(kw_only=True)
class ExternalTwin(Twin):
    """The bookkeeping of such an engine: no pages, one prefill call unless it shows another, its own reuse model.

    It may reuse less than it could, feed what it likes in each call, decline a rewind, and give no reasons.

    Scope `session`: the policy on what the session retains. Scope `engine`: the longest prefix in common with any context so
    far under the same salt, whichever session it was: an upper bound, since an engine may have evicted it.
    """

    model: ReuseModel
    contexts: list[tuple[str | None, Tokens]] = field(default_factory=list)

    def predict(self, session: str, prompt: Tokens, salt: str | None, *, decline_rewind: bool = False) -> Prediction:
        """As `Twin.predict`; the cut is then brought down to what the reuse model admits."""
        plan = super().predict(session, prompt, salt, decline_rewind=decline_rewind)
        reused = plan.reused
        if self.model.scope == "engine" and self.stateful:
            reused = max((common_prefix(prompt, seen) for tenant, seen in self.contexts if tenant == salt), default=0)
        reused = max(min(reused, len(prompt) - self.model.leaves), 0)
        return replace(self._cut(plan, prompt, reused - reused % self.model.granularity), said=())

    def follow(self, plan: Prediction, prompt: Tokens, seen: Observation) -> Prediction:
        """Less reused, if it reused less (`efficiency` says where it may not); and the calls that it made itself."""
        if seen.reused is None or not 0 <= seen.reused <= plan.bound:
            return plan
        return replace(self._cut(plan, prompt, seen.reused), bound=plan.bound, rows=seen.fed_rows)

    def rewinds(self, session: str, n: int) -> bool | None:
        """It may decline any."""
        return None if session in self.sessions else False

    def finish(self, session: str, context: Tokens, fed: Tokens, salt: str | None, was: Prediction) -> set[PageKey]:
        """As `Twin.finish`. A context that was sampled and not fed cannot have been kept."""
        self.contexts.append((salt, fed))
        return super().finish(session, context, fed, salt, was)

    def _cut(self, plan: Prediction, prompt: Tokens, reused: int) -> Prediction:
        """`plan` with another count of reused positions."""
        rest = len(prompt) - reused
        source, prefill = "retained" if reused else "none", (rest,) if self.stateful and rest else ()
        return replace(plan, reused=reused, bound=reused, source=source, prefill=prefill, hit=0, cut=0)

"""The statistics of black boxes: what may be concluded where the schedule cannot be seen. Pure, no I/O.

A turn gives one number, its `Difference` from the cold reply; 19 legal schedules give as many others, and its rank among them
an e-value. One turn proves nothing (at most 2.2): a suspicious one is played again on fresh texts until the product of the
e-values is evidence (1e4). Never an average over tokens, and no tolerance: the controls say how large rounding is.

The controls must not go through the reuse under test. A prompt sent in two parts would, and would then be just as wrong as
the turn that it is to excuse (keys and values swapped on every hit, say). So they are cold: the same request again, and the
prompt continued by j tokens of the cold reply, whose answer the cold reply has shown already from its step j on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..contract.observation import Tokens

CONTROLS = 19
"""Legal schedules for each turn: the least number at which a turn above all of them has a p-value of 0.05."""

EVIDENCE = 1e4
"""The product of e-values at which a difference is a fault: under no fault it is reached once in so many runs."""

REFUTED = 5
"""So many plays on fresh texts in a row that show nothing: what was suspicious was chance, or shows in less than half of them."""

SITES = 60
"""Planted pages at least: all of them found, the lower bound is 0.951, and two misses make it less than `DETECTED`."""

DETECTED = 0.9
"""The least lower bound of detection at which a pass means something."""

Logprobs = Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A greedy reply. `logprobs`: for each token those of the likeliest tokens, in nats; None where none are shown."""

    tokens: Tokens
    logprobs: Sequence[Logprobs] | None = None

    def part(self, start: int, count: int) -> Reply:
        """Its tokens `start` to `start + count`."""
        shown = None if self.logprobs is None else self.logprobs[start : start + count]
        return Reply(tokens=self.tokens[start : start + count], logprobs=shown)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far a reply is from the cold one. None: not to be had, which is not 0.

    `sup`: greatest difference of a log-probability, over all steps up to the first that chose other tokens; after it the
    contexts differ. `step`: that step. `gap`: how much likelier the cold reply's token was there, cold, than this one's.
    `left`: the share of steps from `step` on, 0 where the tokens agree.
    """

    sup: float | None
    step: int | None
    gap: float | None
    left: float

    @property
    def size(self) -> float:
        """How far, for people: in nats, or the share of the reply that is another."""
        return self.left if self.sup is None else self.sup

    @property
    def doubtful(self) -> float:
        """What the turn under test is ranked with: half of its size, and half of the gap if that is more.

        A control compares two legal schedules of which each may be off, and so does the turn: its difference is at most
        twice that of the worst control. For the gap that is the near-tie rule, `cold[top] - cold[t] <= 2e`.
        """
        return self.left if self.sup is None else max(self.sup, self.gap or 0.0) / 2


def difference(seen: Reply, cold: Reply) -> Difference:
    """Compare two replies of the same length step by step. ValueError for different lengths or none."""
    if len(seen.tokens) != len(cold.tokens) or not cold.tokens:
        raise ValueError(
            f"replies of {len(seen.tokens)} and {len(cold.tokens)} tokens: compare two of one length, 1 or more"
        )
    count = len(cold.tokens)
    step = next((at for at in range(count) if seen.tokens[at] != cold.tokens[at]), None)
    left = 0.0 if step is None else (count - step) / count
    if seen.logprobs is None or cold.logprobs is None:
        return Difference(sup=None, step=step, gap=None, left=left)
    steps = range(count if step is None else step + 1)
    found = [value for at in steps for value in _apart(seen.logprobs[at], cold.logprobs[at])]
    gap = None if step is None else _gap(cold.logprobs[step], cold.tokens[step], seen.tokens[step])
    return Difference(sup=max(found, default=None), step=step, gap=gap, left=left)


def _apart(left: Logprobs, right: Logprobs) -> Iterator[float]:
    """Differences over tokens that both show; a token that one does not show is at most the least that it does."""
    for token in left.keys() | right.keys():
        if token in left and token in right:
            yield _distance(left[token], right[token])
        elif left and right:
            shown, other = (left, right) if token in left else (right, left)
            yield max(shown[token] - min(other.values()), 0.0)


def _distance(left: float, right: float) -> float:
    """NaN is as far as can be from anything: it is what an unwritten row looks like."""
    distance = 0.0 if left == right else abs(left - right)
    return math.inf if math.isnan(distance) else distance


def _gap(cold: Logprobs, top: int, token: int) -> float | None:
    """How much likelier `top` is than `token`, at least; None where not even the top one is shown."""
    if top not in cold:
        return None
    return max(cold[top] - cold.get(token, min(cold.values())), 0.0)


def resolution(reply: Reply) -> float:
    """The last bit, as a float32, of the largest log-probability shown, in nats; 0 where none is."""
    shown = [abs(value) for row in reply.logprobs or () for value in row.values() if math.isfinite(value)]
    return 2.0 ** (math.floor(math.log2(max(shown))) - 23) if shown and max(shown) > 0 else 0.0


def p_value(statistic: float, controls: Sequence[float]) -> float:
    """The share of the controls, the turn among them, that are at least as far off."""
    return (1 + sum(control >= statistic for control in controls)) / (len(controls) + 1)


def e_value(p: float) -> float:
    """`1 / (2 sqrt p)`: its mean is at most 1 if there is no fault, so products of it can be trusted at any moment."""
    return 1 / (2 * math.sqrt(p))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One turn against its controls. `worst`: the farthest legal schedule, in the unit of `statistic`."""

    difference: Difference
    controls: tuple[float, ...]

    @property
    def statistic(self) -> float:
        """What is ranked."""
        return self.difference.doubtful

    @property
    def worst(self) -> float:
        """The farthest that a legal schedule was off."""
        return max(self.controls)

    @property
    def suspicious(self) -> bool:
        """Farther off than every legal schedule, or another token that is no near-tie."""
        return self.statistic > self.worst

    @property
    def e(self) -> float:
        """The evidence in this turn alone."""
        return e_value(p_value(self.statistic, self.controls))

    def __str__(self) -> str:
        unit = "of the reply is another" if self.difference.sup is None else "nats"
        token = "" if self.difference.step is None else f", another token at step {self.difference.step}"
        return f"{self.difference.size:.4g} {unit}{token}; legal schedules up to {self.worst:.4g}"


def judge(warm: Reply, cold: Reply, controls: Sequence[tuple[Reply, Reply]]) -> Judged:
    """The turn `warm` against `cold`, with pairs (legal schedule, what it must be like) as controls. ValueError if none.

    Nats are ranked among nats: a control that chose another token where nothing was shown is left out, and a turn that did so
    is ranked by tokens alone.
    """
    if not controls:
        raise ValueError("no controls: without a legal schedule there is nothing to rank a turn among; play some first")
    turn, legal = difference(warm, cold), [difference(seen, wanted) for seen, wanted in controls]
    shown = [each.sup for each in legal if each.sup is not None]
    if turn.sup is None or not shown:
        return Judged(difference=replace(turn, sup=None, gap=None), controls=tuple(each.left for each in legal))
    return Judged(difference=turn, controls=tuple(shown))


@dataclass
class Evidence:
    """A running product of e-values over independent plays of one shape. `clean`: plays in a row that were not suspicious."""

    product: float = 1.0
    plays: int = 0
    suspicious: int = 0
    clean: int = 0

    def add(self, judged: Judged) -> None:
        """One more play."""
        self.product *= judged.e
        self.plays += 1
        self.suspicious += judged.suspicious
        self.clean = 0 if judged.suspicious else self.clean + 1

    def __str__(self) -> str:
        return (
            f"{self.suspicious} of {self.plays} plays on fresh texts are farther off than all {CONTROLS} legal schedules of "
            f"theirs (e-value {self.product:.4g}; {EVIDENCE:.0f} is a fault)"
        )

    @property
    def enough(self) -> bool:
        """A fault."""
        return self.product >= EVIDENCE

    @property
    def refuted(self) -> bool:
        """Chance: one turn in twenty is above all its controls without any fault, so a run of a dozen turns has some."""
        return self.clean >= REFUTED


def lower_bound(found: int, sites: int, *, confidence: float = 0.95) -> float:
    """Clopper-Pearson, one-sided: the rate that with `confidence` is not undercut. ValueError unless 0 <= found <= sites > 0.

    The greatest rate at which `found` or more of `sites` has a probability of at most 1 - confidence; by bisection, exact
    to the last bit that a float can tell.
    """
    if not 0 <= found <= sites or sites < 1:
        raise ValueError(f"{found} of {sites} sites: give 1 site or more, and as many found at most")
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if _at_least(found, sites, middle) <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low if found else 0.0


def _at_least(found: int, sites: int, rate: float) -> float:
    """The probability of `found` or more hits."""
    return math.fsum(math.comb(sites, k) * rate**k * (1 - rate) ** (sites - k) for k in range(found, sites + 1))


@dataclass(frozen=True, kw_only=True)
class Power:
    """How many planted wrong pages were suspicious."""

    found: int = 0
    sites: int = 0

    def plus(self, seen: bool) -> Power:
        """One site more."""
        return Power(found=self.found + seen, sites=self.sites + 1)

    @property
    def bound(self) -> float:
        """The lower bound of detection; 0 of none."""
        return lower_bound(self.found, self.sites) if self.sites else 0.0

    @property
    def enough(self) -> bool:
        """Whether a pass means something."""
        return self.sites >= SITES and self.bound >= DETECTED

    def __str__(self) -> str:
        return f"{self.found} of {self.sites} wrong pages seen, so at least {self.bound:.3f} of them (95%)"

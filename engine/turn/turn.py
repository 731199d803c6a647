"""One turn: take what is retained, look up, admit, run, publish, put back, release.

    NEW ──next──> RUNNING ──last step or close()──> DONE      state and context are put back together
                     └──────an exception in a step──> FAILED   the state is dropped; pages are released all the same

A turn is an iterator of `Step`, suspended only at step boundaries: whoever stops iterating and closes it leaves a state
that holds exactly what was fed.

**Two sources compete** for the beginning of a prompt: the retained state of the session, and what is published in pages.
Each is planned alone, by the same policy, with the components of whoever holds the positions: the state says how it may
be cut, the pool says it of its pages. Neither plan touches anything. The larger cut wins; on a tie the retained state
does, because pages would have to be copied. The loser is not lost. If pages win, the state that is loaded from them is
the retained decoder's own, emptied. If the state wins with a cut beyond the hit, this turn still claims the hit's pages,
and mirrors [hit, cut) from the state into pages before the first step, so that the published prefix grows from where it
ended. A plan to rewind may be declined by the state; then it is reset, and nothing is reused.

**What is pinned, and when.** A look-up holds nothing: the next publish or eviction may take the node away. So the hit is
pinned before anything makes room, and room is made while it is pinned: to evict first would throw away the very prefix
that is about to be claimed. The claim then holds what the turn needs for longer: a reference on each covering page, the
pages still to be written for this prompt (one more if the hit ends inside a page, whose copy is written to), and a pin on
the deepest whole page, behind which the turn will publish. With that the pin on the hit is given back, when the state is
seeded or failed to be. While the turn runs the claim's pin moves on with every page it publishes, so a path cannot be
evicted under the turn that extends it. Where there are not enough pages nothing is claimed and the turn runs unpaged, but
may still be seeded from the pinned hit.

**Order within a step.** The model call first, then what it computed is mirrored and whole pages are published, then a
token is sampled: nothing is published that was not computed, and a turn cancelled at any boundary has published all it has.

**What is given back.** `_release` drops the claim (pages, reserved pages, the pin) on every way out of a turn that started:

- last step, or `close()` between two: the rest, up to inside a page, is published; then the claim goes, and context,
  identity and decoder go back into the slot together, if there is an identity to find them by;
- an exception, in admission, in a step, in a probe or while publishing: the claim goes, the slot gets nothing, because
  nobody knows what the state holds; the next turn of the session starts from the prefix cache or cold;
- `close()` before the first step, or a start refused because the slot is busy: nothing was taken, nothing is given back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

from ..backends.base import Backend
from ..contract.errors import BackendError, UsageError, WarmcoldError
from ..contract.probe import Mirroring, Planned, Probe, Publishing, Seeded
from ..contract.request import Completion, CutReason, GateReason, Identity, ReuseSource, SamplingParams, Step
from ..kv.mirror import PageTable, seed
from ..kv.pages import PagePool
from ..kv.prefix_cache import Node, PrefixCache
from ..package.resolve import ModelSpec
from .decoder import Decoder
from .loop import Loop, begin
from .reuse import (
    Plan,
    Reset,
    ReusedPrefix,
    apply_prefix_reuse,
    common_prefix,
    nothing_reused,
    plan_prefix_reuse,
)
from .slot import Retained, Slot
from .stopping import Decode, StopRule


@dataclass(frozen=True, kw_only=True)
class Core:
    """What all turns of one engine share."""

    spec: ModelSpec
    backend: Backend
    pool: PagePool
    cache: PrefixCache
    chunk_size: int
    max_context: int
    probe: Probe
    tables: list[PageTable] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One checked request. `gate`: why it may not use pages; `decode` is needed for stop strings only."""

    prompt: tuple[int, ...]
    params: SamplingParams
    identity: Identity | None
    gate: GateReason | None
    decode: Decode | None = None


class _Phase(Enum):
    NEW = "new"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Turn:
    """Iterate it to run it; `completion` is there once it ended; `close()` cancels at the present step boundary."""

    def __init__(self, core: Core, request: Request, slot: Slot) -> None:
        """What `slot` holds is taken when the turn starts, and something is put back exactly once when it ends."""
        self._core = core
        self._prompt = request.prompt
        self._params = request.params
        self._identity = request.identity
        self._gate = request.gate
        self._text = request.decode
        self._slot = slot
        self._phase = _Phase.NEW
        self._context: Sequence[int] = self._prompt
        self._table: PageTable | None = None
        self._completion: Completion | None = None

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        if self._phase in (_Phase.DONE, _Phase.FAILED):
            raise StopIteration
        if self._phase is _Phase.NEW:
            self._start()
        try:
            return next(self._steps)
        except StopIteration:
            self._finish()
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the turn here. What was fed stays valid and is kept. Idempotent; before the first step nothing happened."""
        if self._phase is _Phase.RUNNING:
            self._finish()
        elif self._phase is _Phase.NEW:
            self._phase = _Phase.DONE

    def finish(self) -> Completion:
        """Run to the end."""
        for _ in self:
            pass
        return self.completion

    @property
    def completion(self) -> Completion:
        """The finished turn. UsageError while it runs or when it failed."""
        if self._completion is None:
            raise UsageError(f"the turn is {self._phase.value}: iterate it to its end, or close() it, first")
        return self._completion

    def _start(self) -> None:
        retained = self._slot.take()
        self._phase = _Phase.RUNNING
        try:
            self._prefix = self._admit(retained)
            self._progress = begin(self._prompt, self._prefix)
            self._context = self._progress.context
            self._steps = self._loop().run(self._progress)
            self._core.probe(Seeded(state=self._decoder.state, n=self._prefix.length))
        except BaseException as error:
            self._fail(error)
            raise

    def _loop(self) -> Loop:
        core = self._core
        return Loop(
            decoder=self._decoder,
            params=self._params,
            stop=StopRule(self._params, eos=core.spec.eos, max_context=core.max_context, decode=self._text),
            chunk_size=core.chunk_size if core.spec.has_state else core.max_context,
            commit=self._commit,
            probe=core.probe,
        )

    def _admit(self, retained: Retained | None) -> ReusedPrefix:
        """Bring a decoder to the longest prefix that either source admits, and claim pages for this turn."""
        core = self._core
        plan = self._plan_retained(retained)
        hit = core.cache.look_up(self._identity, self._prompt) if self._identity and not self._gate else None
        paged = self._plan_paged(hit)
        use_pages = paged.n > plan.n
        decoder = retained.decoder if retained is not None else None
        self._decoder = decoder or Decoder(core.spec, core.backend, core.backend.new_state())
        chosen = paged if use_pages else plan
        core.probe(Planned(source=_source(chosen, use_pages), reused=chosen.n, reason=chosen.reason, gate=self._gate))
        if hit is not None:
            core.cache.pin(hit)
        try:
            self._claim(hit, paged.n)
            prefix = self._seed(hit, paged) if hit is not None and use_pages else self._rewind(plan)
            self._mirror(prefix.length)
        finally:
            if hit is not None:
                core.cache.unpin(hit)
        return prefix

    def _plan_retained(self, retained: Retained | None) -> Plan:
        if not self._core.spec.has_state:
            return Reset(CutReason.STATELESS)
        if retained is None or self._identity is None or retained.identity != self._identity:
            return Reset(CutReason.IDENTITY)
        shared = common_prefix(self._prompt, retained.context)
        state = retained.decoder.state
        return plan_prefix_reuse(shared, state.kv_len, len(self._prompt) - 1, state.components())

    def _plan_paged(self, hit: Node | None) -> Plan:
        length = hit.length if hit is not None else 0
        return plan_prefix_reuse(length, length, len(self._prompt) - 1, self._core.pool.components())

    def _claim(self, hit: Node | None, n: int) -> None:
        """Hold the pages that this prompt needs, or note why this turn runs unpaged."""
        if self._gate is not None:
            return
        core = self._core
        size = core.pool.page_size
        covered = -(-n // size)
        need = -(-len(self._prompt) // size) - covered + (1 if n % size else 0)
        table = PageTable(core.pool, core.cache)
        if table.claim(hit, n, need):
            self._table = table
            core.tables.append(table)
        else:
            self._gate = GateReason.POOL_EXHAUSTED

    def _seed(self, hit: Node, plan: Plan) -> ReusedPrefix:
        """Admission of claimed pages: the state holds the first `plan.n` positions that they cover."""
        seed(self._decoder.state, self._core.pool, hit.pages(), plan.n)
        return ReusedPrefix(length=plan.n, source=ReuseSource.PAGED, reason=plan.reason)

    def _rewind(self, plan: Plan) -> ReusedPrefix:
        if isinstance(plan, Reset) and self._decoder.state.kv_len == 0:
            return nothing_reused(plan.reason)
        return apply_prefix_reuse(self._decoder.state, plan)

    def _commit(self) -> None:
        self._mirror(len(self._progress.fed))

    def _mirror(self, stop: int) -> None:
        """Copy what the state newly holds into pages and publish the page boundaries that this completes."""
        table = self._table
        if table is None or self._identity is None or stop <= table.length:
            return
        self._core.probe(Mirroring(start=table.length, stop=stop))
        table.mirror(self._decoder.state, stop)
        self._publish(table, self._identity, partial=False)

    def _publish(self, table: PageTable, identity: Identity, *, partial: bool) -> None:
        self._core.probe(Publishing(length=table.length))
        table.publish(identity, self._context, partial=partial)

    def _finish(self) -> None:
        try:
            if self._table is not None and self._identity is not None:
                self._publish(self._table, self._identity, partial=True)
        except BaseException as error:
            self._fail(error)
            raise
        self._phase = _Phase.DONE
        self._completion = self._complete()
        self._release()
        self._slot.put_back(self._kept())

    def _fail(self, error: BaseException) -> None:
        """Drop the state: what it holds is unknown. Pages and pins go back all the same.

        Whatever went wrong inside a turn reaches the caller as ours, with its cause; only an interrupt goes through bare.
        """
        self._phase = _Phase.FAILED
        self._release()
        self._slot.put_back(None)
        if isinstance(error, Exception) and not isinstance(error, WarmcoldError):
            raise BackendError(
                f"the turn failed ({type(error).__name__}: {error}); its state was dropped, the session can go on"
            ) from error

    def _kept(self) -> Retained | None:
        if self._identity is None or not self._core.spec.has_state:
            return None
        return Retained(context=tuple(self._progress.context), identity=self._identity, decoder=self._decoder)

    def _release(self) -> None:
        if self._table is not None:
            self._table.release()
            self._core.tables.remove(self._table)
            self._table = None

    def _complete(self) -> Completion:
        return Completion(
            tokens=self._progress.tokens,
            reused=self._prefix.length,
            prefilled=len(self._prompt) - self._prefix.length,
            source=self._prefix.source,
            reason=self._prefix.reason,
            declined=self._prefix.declined,
            gate=self._gate,
            mirror_stop=self._table.stopped if self._table is not None else None,
            stop=self._progress.stop,
            calls=tuple(self._progress.calls),
        )


def _source(plan: Plan, paged: bool) -> ReuseSource:
    if not plan.n:
        return ReuseSource.NONE
    return ReuseSource.PAGED if paged else ReuseSource.RETAINED

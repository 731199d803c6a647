"""Clean tree passes -> forced failure fails -> each mutant, in its own process on its own copy.

The first two make the rest mean something: a clean tree with findings would "kill" everything, and a run in which a
plainly wrong engine passes looks at the wrong build, or at nothing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .apply import FalsifierError, StaleError, compile_tree, copy_tree, plant
from .mutant import ALLOWLIST, CRASH, Mutant, Outcome, Result, judge

TIMEOUT_S = 180.0
PACKAGE = "warmcold"

FORCED = Mutant(
    id="forced-failure",
    file="engine/turn/sampling.py",
    text="return int(np.argmax(scores))",
    replacement="return int(np.argmin(scores))",
    kind="oracle_blindness",
    expected_check="closed_form",
    note="The engine says the least likely token: whoever cannot see this sees nothing.",
    backend=("native", "ort"),
)


class BatteryError(FalsifierError):
    """The battery proves nothing: the clean tree does not pass, or the forced failure does."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One child process after its end. `code` None: it ran into the timeout. `found`: check -> its first finding."""

    code: int | None
    found: dict[str, str]
    turns: int
    sources: dict[str, int]
    seconds: float
    tail: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a whole battery showed."""

    clean: Run
    forced: Run
    results: tuple[Result, ...]


def run_battery(
    source: Path,
    mutants: Sequence[Mutant],
    *,
    jobs: int = 2,
    timeout_s: float = TIMEOUT_S,
    told: Callable[[str | Result], None] = lambda news: None,
) -> Report:
    """Run the battery over a snapshot of the package folder `source`, `jobs` processes at a time.

    `told` hears the name of whatever begins, and each result. Raises BatteryError before any mutant is run when the clean
    tree fails or the forced failure passes.
    """
    with tempfile.TemporaryDirectory(prefix="warmcold-mutate-") as scratch, ThreadPoolExecutor(jobs) as pool:
        base = Path(scratch) / "clean" / PACKAGE
        copy_tree(source, base)
        compile_tree(base)
        told("clean tree")
        clean = _clean(base, mutants, timeout_s, pool)
        told("forced failure")
        forced = _forced(base, Path(scratch) / "forced" / PACKAGE, timeout_s)

        def one(mutant: Mutant) -> Result:
            told(mutant.id)
            result = run_mutant(base, Path(scratch) / mutant.id / PACKAGE, mutant, timeout_s)
            told(result)
            return result

        return Report(clean=clean, forced=forced, results=tuple(pool.map(one, mutants)))


def run_mutant(base: Path, tree: Path, mutant: Mutant, timeout_s: float) -> Result:
    """Plant `mutant` in a fresh copy of `base` at `tree`, run what ought to see it, and judge. The copy is removed."""
    shutil.copytree(base, tree)
    try:
        plant(mutant, tree)
        run = _allowlist(tree, timeout_s) if mutant.expected_check == ALLOWLIST else _play(tree, mutant, timeout_s)
    except StaleError as error:
        return Result(mutant=mutant, outcome=Outcome.STALE, witness=str(error))
    finally:
        _remove(tree)
    return _result(mutant, run)


def _result(mutant: Mutant, run: Run) -> Result:
    if run.code is None:
        return Result(mutant=mutant, outcome=Outcome.TIMEOUT, seconds=run.seconds, witness=run.tail)
    killed_by = tuple(run.found) or ((CRASH,) if run.code else ())
    return Result(
        mutant=mutant,
        outcome=judge(mutant.expected_check, killed_by),
        killed_by=killed_by,
        seconds=run.seconds,
        witness=run.found.get(mutant.expected_check) or next(iter(run.found.values()), run.tail if run.code else ""),
    )


def _clean(base: Path, mutants: Sequence[Mutant], timeout_s: float, pool: Executor) -> Run:
    """Everything that any mutant will be judged by, on the tree as it is."""
    runs = list(pool.map(lambda leg: _child(base, [leg[0]], [leg[1]], timeout_s), legs(mutants)))
    if any(mutant.expected_check == ALLOWLIST for mutant in mutants):
        runs.append(_allowlist(base, timeout_s))
    clean = Run(
        code=next((run.code for run in runs if run.code != 0), 0),
        found={check: text for run in runs for check, text in run.found.items()},
        turns=sum(run.turns for run in runs),
        sources={name: sum(run.sources.get(name, 0) for run in runs) for name in ("none", "retained", "paged")},
        seconds=sum(run.seconds for run in runs),
        tail="\n".join(run.tail for run in runs if run.code != 0),
    )
    if clean.code != 0 or clean.found:
        seen = "\n".join(clean.found.values()) or clean.tail or "timed out"
        raise BatteryError(f"the clean tree does not pass, so no mutant would prove anything:\n{seen}")
    if not (clean.sources["retained"] and clean.sources["paged"]) and legs(mutants):
        raise BatteryError(f"the clean tree never reused from both sources ({clean.sources}): nothing was tested")
    return clean


def _forced(base: Path, tree: Path, timeout_s: float) -> Run:
    shutil.copytree(base, tree)
    try:
        plant(FORCED, tree)
        run = _play(tree, FORCED, timeout_s)
    except StaleError as error:
        raise BatteryError(str(error)) from error
    finally:
        _remove(tree)
    if FORCED.expected_check not in run.found:
        raise BatteryError(f"a plainly wrong engine was not seen (found {list(run.found)}): {run.tail}")
    return run


def legs(mutants: Iterable[Mutant]) -> list[tuple[str, str]]:
    """Every (model, backend) that some mutant is played on, each once."""
    played = (mutant for mutant in mutants if mutant.expected_check != ALLOWLIST)
    return sorted({(model, backend) for mutant in played for model in mutant.models for backend in mutant.backend})


def _play(tree: Path, mutant: Mutant, timeout_s: float) -> Run:
    return _child(tree, mutant.models, mutant.backend, timeout_s)


def _child(tree: Path, models: Sequence[str], backends: Sequence[str], timeout_s: float) -> Run:
    arguments = ["-m", "warmcold.mutations.child"]
    for model in models:
        arguments += ["--model", model]
    for backend in backends:
        arguments += ["--backend", backend]
    code, out, tail, seconds = _python(tree, arguments, timeout_s)
    if code != 0:
        return Run(code=code, found={}, turns=0, sources={}, seconds=seconds, tail=tail)
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    _same_build(tree, said["engine"])
    return Run(code=code, found=said["first"], turns=said["turns"], sources=said["sources"], seconds=seconds, tail=tail)


def _same_build(tree: Path, engine: str) -> None:
    expected = (tree / "engine" / "__init__.py").resolve()
    if Path(engine) != expected:
        raise BatteryError(f"the child imported {engine} instead of {expected}: another installation shadows the copy")


def _allowlist(tree: Path, timeout_s: float) -> Run:
    """The source scan. Exit 1 with something said is a finding, 0 none; anything else could not run."""
    code, out, tail, seconds = _python(tree, ["-m", "warmcold.mutations.source_scan"], timeout_s)
    found = {ALLOWLIST: out.strip()} if code == 1 and out.strip() else {}
    return Run(code=0 if found else code, found=found, turns=0, sources={}, seconds=seconds, tail=tail)


def _python(tree: Path, arguments: Sequence[str], timeout_s: float) -> tuple[int | None, str, str, float]:
    """Exit code (None: timeout), stdout, the end of stderr, seconds. The environment is written out, not inherited."""
    environment = {
        "PYTHONPATH": str(tree.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-P", *arguments],
            cwd=tree, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, "", f"no end within {timeout_s:.0f} s", time.monotonic() - started
    return done.returncode, done.stdout, done.stderr[-2000:], time.monotonic() - started


def _remove(tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)

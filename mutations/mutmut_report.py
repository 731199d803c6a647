"""Judges a run of mutmut: `python -m warmcold.mutations.mutmut_report` writes `reports/mutmut.json` and `reports/mutmut.md`.

The run lies in `build/mutmut`, or in the folder that is given: `make mutmut` builds it, since mutmut cannot follow links.

Exits with 1 when a mutant is unexplained, an explanation is stale or refuted, a function is without mutants and not
listed, or a canary says that the run could not see. Explanations lie in `mutmut_equivalent.json` beside this file.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from .mutmut_results import SOURCE, Mutated, Status, read_mutants, unmutated

BUILT = Path("build/mutmut")
CANARY = "mutations/canary.py"
UNEXPLAINED = "UNEXPLAINED"

_MUST = {"seen": Status.KILLED, "unseen": Status.SURVIVED}
_EQUIVALENT = (Status.SURVIVED, Status.NO_TESTS)


@dataclass(frozen=True, kw_only=True)
class Explanations:
    """`equivalent`, `hangs`: mutant id -> why it may survive, or may run into the clock. `no_mutants`: function -> why."""

    equivalent: Mapping[str, str] = field(default_factory=dict)
    hangs: Mapping[str, str] = field(default_factory=dict)
    no_mutants: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A judged run. `problems` is empty when it passes; `blind`: functions without mutants, `file:name`."""

    mutants: Sequence[Mutated]
    blind: Sequence[str]
    explanations: Explanations
    problems: Sequence[str]


def load_explanations(path: Path) -> Explanations:
    """The file holds `{"equivalent": {id: {"change", "why"}}, "hangs": likewise, "no_mutants": {function: why}}`."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Explanations(
        equivalent={key: entry["why"] for key, entry in data["equivalent"].items()},
        hangs={key: entry["why"] for key, entry in data["hangs"].items()},
        no_mutants=data["no_mutants"],
    )


def judge(root: Path, explanations: Explanations) -> Run:
    """Read the run in `root` and hold it against the explanations."""
    everything = read_mutants(root)
    mutants = [mutant for mutant in everything if mutant.path != CANARY]
    keys = {mutant.key for mutant in everything}
    wanted = _wanted(root)
    blind = [f"{path}:{name}" for path in wanted for name in unmutated(root, path, keys)]
    problems = [
        *_canaries([mutant for mutant in everything if mutant.path == CANARY]),
        *_unexplained(mutants, explanations),
        *_stale(mutants, explanations),
        *_audit(blind, explanations.no_mutants),
    ]
    return Run(mutants=mutants, blind=blind, explanations=explanations, problems=problems)


def why(mutant: Mutated, explanations: Explanations) -> str:
    """The argument for a mutant that was not killed, or `UNEXPLAINED`."""
    of = explanations.hangs if mutant.status is Status.TIMEOUT else explanations.equivalent
    known = of.get(mutant.id) if mutant.status in (*_EQUIVALENT, Status.TIMEOUT) else None
    return known or UNEXPLAINED


def to_json(run: Run) -> dict[str, Any]:
    """Plain data, as `reports/mutmut.json` has it."""
    killers = [mutant.killer for mutant in run.mutants if mutant.status is Status.KILLED and mutant.killer]
    return {
        "passed": not run.problems,
        "problems": list(run.problems),
        "total": _counts(run.mutants),
        "files": {path: _counts(of) for path, of in _by_file(run.mutants).items()},
        "not_killed": [
            {**asdict(mutant), "why": why(mutant, run.explanations)}
            for mutant in run.mutants
            if mutant.status is not Status.KILLED
        ],
        "no_mutants": {name: run.explanations.no_mutants.get(name, UNEXPLAINED) for name in run.blind},
        "killed_by_exception": dict(Counter(killer.exception for killer in killers).most_common()),
        "killed_by_test_file": dict(Counter(killer.nodeid.partition("::")[0] for killer in killers).most_common()),
    }


def to_markdown(run: Run) -> str:
    """The same as a page: verdict, counts, problems, and each mutant that lives with its argument."""
    data = to_json(run)
    parts = [
        "# What mutmut found in the pure core",
        f"{'PASS' if data['passed'] else 'FAIL'}: {len(run.mutants)} mutants, {_words(data['total'])}. "
        "A kill is a test that failed in its call phase; a mutant that runs into the clock is none.",
        _table(data["files"]),
        _bullets("## Problems", run.problems),
        *(_section(run, status) for status in Status if status is not Status.KILLED),
        _bullets("## Functions that mutmut does not mutate", [f"`{n}`: {w}" for n, w in data["no_mutants"].items()]),
        _bullets("## What killed", [f"{name}: {count}" for name, count in data["killed_by_exception"].items()]),
        _bullets("## Where", [f"`{name}`: {count}" for name, count in data["killed_by_test_file"].items()]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write(run: Run, folder: Path) -> Path:
    """Write `mutmut.json` and `mutmut.md` into `folder`; returns the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(to_json(run), indent=1, ensure_ascii=False)
    (folder / "mutmut.json").write_text(text + "\n", encoding="utf-8")
    page = folder / "mutmut.md"
    page.write_text(to_markdown(run), encoding="utf-8")
    return page


def main(root: Path, reports: Path) -> int:
    """Judge the run in `root`, write the reports into `reports`, say what is wrong; 0 when nothing is."""
    run = judge(root, load_explanations(Path(__file__).with_name("mutmut_equivalent.json")))
    page = write(run, reports)
    for problem in run.problems:
        print(problem)
    print(f"{'FAIL' if run.problems else 'PASS'}: {_words(_counts(run.mutants))}; see {page}")
    return 1 if run.problems else 0


def _wanted(root: Path) -> list[str]:
    """The files that `[tool.mutmut]` names, whether or not a mutant came of them."""
    patterns = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]["only_mutate"]
    paths = [path.relative_to(root).as_posix() for path in sorted((root / SOURCE).rglob("*.py"))]
    return [path.removeprefix(f"{SOURCE}/") for path in paths if any(fnmatch(path, pattern) for pattern in patterns)]


def _canaries(mutants: Sequence[Mutated]) -> Iterator[str]:
    for function, status in _MUST.items():
        found = {mutant.status for mutant in mutants if mutant.function == function}
        if found != {status}:
            said = ", ".join(sorted(found)) or "none"
            yield f"VOID: mutants of canary {CANARY}:{function} must all be {status}, were: {said}; mend the set-up"


def _unexplained(mutants: Sequence[Mutated], explanations: Explanations) -> Iterator[str]:
    for mutant in mutants:
        if mutant.status is not Status.KILLED and why(mutant, explanations) == UNEXPLAINED:
            yield (
                f"{UNEXPLAINED} {mutant.id} ({mutant.status}) {mutant.path}:{mutant.function} "
                f"{' '.join(' '.join(mutant.diff).split())}; kill it by a test, or argue it in mutmut_equivalent.json"
            )


def _stale(mutants: Sequence[Mutated], explanations: Explanations) -> Iterator[str]:
    """An argument about code that is gone, or about a mutant that a test could see after all."""
    status = {mutant.id: mutant.status for mutant in mutants}
    for kind, ids in (("equivalent", explanations.equivalent), ("hangs", explanations.hangs)):
        for mark in ids:
            if mark not in status:
                yield f"STALE {kind} {mark}: no such mutant now; remove it from mutmut_equivalent.json"
            elif kind == "equivalent" and status[mark] is Status.KILLED:
                yield f"REFUTED {kind} {mark}: a test killed it; remove it from mutmut_equivalent.json"


def _audit(blind: Sequence[str], listed: Mapping[str, str]) -> Iterator[str]:
    for name in blind:
        if name not in listed:
            yield f"BLIND {name}: holds code but no mutant; make it plain, or list it under no_mutants with what tests it"
    for name in listed:
        if name not in blind:
            yield f"STALE no_mutants {name}: it has mutants, or is gone; remove it from mutmut_equivalent.json"


def _by_file(mutants: Sequence[Mutated]) -> dict[str, list[Mutated]]:
    return {path: [m for m in mutants if m.path == path] for path in sorted({m.path for m in mutants})}


def _counts(mutants: Sequence[Mutated]) -> dict[str, int]:
    seen = Counter(mutant.status for mutant in mutants)
    return {status.value: seen[status] for status in Status if seen[status]}


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing"


def _table(files: Mapping[str, Mapping[str, int]]) -> str:
    columns = [status.value for status in Status if any(status.value in counts for counts in files.values())]
    rows = [[f"`{path}`", *(str(counts.get(name, 0)) for name in columns)] for path, counts in files.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in (["file", *columns], ["---"] * (len(columns) + 1), *rows))


def _section(run: Run, status: Status) -> str:
    of = [mutant for mutant in run.mutants if mutant.status is status]
    entries = [
        f"`{m.id}` `{m.path}` `{m.function}`\n\n```diff\n" + "\n".join(m.diff) + f"\n```\n\n{why(m, run.explanations)}"
        for m in of
    ]
    return "\n\n".join([f"## {status.value.capitalize()} ({len(of)})", *entries]) if of else ""


def _bullets(head: str, lines: Sequence[str]) -> str:
    return "\n".join([head, "", *(f"- {line}" for line in lines)]) if lines else ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else BUILT, Path("reports")))

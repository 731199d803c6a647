"""Known divergences of other people's engines, as data: one strict file per subject, a reason and a link on each entry.

Strict both ways: an entry that applies must still be seen, and a divergence without an entry is a failure. So a file is
never older than the engine it speaks of, and an engine that was mended says so by turning its entry red.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from ..contract.errors import KnownError, ScenarioError
from ..contract.scenario import Scenario, from_json

FORMAT = 1
FOLDER = Path(__file__).parents[1] / "subjects" / "known"
_FIELDS = {"id", "package", "versions", "model", "options", "law", "case", "check", "reason", "link"}


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """One entry. `package` and `versions`: of which releases it is known (`describe()` says which one runs); `model`: a pattern
    for the model's name; `options`: those of the subject with which it shows, others being free.

    Either `law` names the law of `conformance` that it breaks, or `case` is a conversation on which `check` finds it.
    """

    id: str
    package: str
    versions: SpecifierSet
    model: str
    options: Mapping[str, str]
    law: str | None
    case: Scenario | None
    check: str | None
    reason: str
    link: str

    def applies(self, model: str, described: Mapping[str, Any], options: Mapping[str, str]) -> bool:
        """Whether it speaks of this model on this release with these options."""
        try:
            version = Version(str(described.get(self.package)))
        except InvalidVersion:
            return False
        fits = self.versions.contains(version, prereleases=True) and fnmatch(Path(model).name, self.model)
        return fits and all(options.get(name) == value for name, value in self.options.items())


def shipped(subject: str) -> tuple[Divergence, ...]:
    """The entries that come with warmcold for the subject of this name; none for a subject without a file."""
    file = FOLDER / f"{subject}.json"
    return load(file) if file.is_file() else ()


def load(file: Path) -> tuple[Divergence, ...]:
    """Read a file. KnownError names the entry at fault."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise KnownError(f"{file}: cannot be read ({error.strerror}); give a file of known divergences") from error
    except ValueError as error:
        raise KnownError(f"{file}: not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("warmcold_known") != FORMAT or not isinstance(data.get("known"), list):
        raise KnownError(f'{file}: expected an object with "warmcold_known": {FORMAT} and a list "known"')
    entries = tuple(_entry(item, f'{file}: "known"[{at}]') for at, item in enumerate(data["known"]))
    if len({entry.id for entry in entries}) != len(entries):
        raise KnownError(f"{file}: two entries have the same id; give each its own")
    return entries


def _entry(item: Any, place: str) -> Divergence:
    if not isinstance(item, dict) or (unknown := sorted(set(item) - _FIELDS)):
        raise KnownError(f"{place}: expected an object with {sorted(_FIELDS)}" + (f", found {unknown}" if item else ""))
    for name in ("id", "package", "versions", "reason", "link"):
        if not isinstance(item.get(name), str) or not item[name]:
            raise KnownError(f"{place}: {name} is {item.get(name)!r}; give a text (each entry has a reason and a link)")
    if (item.get("law") is None) == (item.get("case") is None):
        raise KnownError(f"{place}: give either the law that it breaks or a case that shows it")
    try:
        return Divergence(
            id=item["id"], package=item["package"], versions=SpecifierSet(item["versions"]), model=item.get("model", "*"),
            options=dict(item.get("options", {})), law=item.get("law"),
            case=from_json(item["case"]) if item.get("case") is not None else None, check=item.get("check"),
            reason=item["reason"], link=item["link"],
        )  # fmt: skip
    except (InvalidSpecifier, ScenarioError) as error:
        raise KnownError(f"{place}: {error}") from error

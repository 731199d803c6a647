"""Known divergences of other people's engines, as data: one strict file per subject, a reason and a link on each entry.

Strict both ways: an entry that applies must still be seen, and a divergence without an entry is a failure. So a file is
never older than the engine it speaks of, and an engine that was mended says so by turning its entry red.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from ..contract.data import converted, read
from ..contract.errors import KnownError
from ..contract.scenario import CaseFile

FOLDER = Path(__file__).parents[1] / "subjects" / "known"

Text = Annotated[str, Meta(min_length=1)]


class Divergence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry. `package` and `versions`: of which releases it is known (`describe()` says which one runs); `model`: a pattern
    for the model's name; `options`: those of the subject with which it shows, others being free.

    Either `law` names the law of `conformance` that it breaks, or `case` is a conversation on which `check` finds it.
    """

    id: Text
    package: Text
    versions: Text
    reason: Text
    link: Text
    model: str = "*"
    options: dict[str, str] = {}
    law: str | None = None
    case: CaseFile | None = None
    check: str | None = None

    def __post_init__(self) -> None:
        if (self.law is None) == (self.case is None):
            raise ValueError(f"{self.id}: give either the law that it breaks or a case that shows it")
        try:
            SpecifierSet(self.versions)
        except InvalidSpecifier as error:
            raise ValueError(f"{self.id}: versions: {error}; give them as pip writes them") from error

    def applies(self, model: str, described: Mapping[str, object], options: Mapping[str, str]) -> bool:
        """Whether it speaks of this model on this release with these options."""
        try:
            version = Version(str(described.get(self.package)))
        except InvalidVersion:
            return False
        known = SpecifierSet(self.versions).contains(version, prereleases=True)
        fits = known and fnmatch(Path(model).name, self.model)
        return fits and all(options.get(name) == value for name, value in self.options.items())


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    warmcold_known: Literal[1]
    known: tuple[Divergence, ...]


def shipped(subject: str) -> tuple[Divergence, ...]:
    """The entries that come with warmcold for the subject of this name; none for a subject without a file."""
    file = FOLDER / f"{subject}.json"
    return load(file) if file.is_file() else ()


def load(file: Path) -> tuple[Divergence, ...]:
    """Read a file. KnownError names the entry at fault."""
    data = read(file, KnownError)
    try:
        entries = converted(data, _File, KnownError).known
    except KnownError as error:
        raise KnownError(f"{file}: {error}") from error
    if len({entry.id for entry in entries}) != len(entries):
        raise KnownError(f"{file}: two entries have the same id; give each its own")
    return entries

"""Texts that somebody else wrote, as each target can hold them; and the templates, in which nothing else is filled in."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: object) -> str:
    """Without control characters, which a terminal obeys and XML does not know; they are shown as escapes."""
    return _UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), str(text))


def docstring(text: object) -> str:
    """As it may stand in a Python docstring."""
    return plain(text).replace("\\", "\\\\").replace('"', '\\"')


def literal(value: object) -> str:
    """As a Python literal."""
    return repr(value)


def cell(text: object) -> str:
    """As it may stand in a line of Markdown, and in a cell of a table."""
    return " ".join(plain(text).split()).replace("|", "\\|").replace("`", "\\`").replace("<", "&lt;")


def fenced(text: object) -> str:
    """As a block of Markdown, whose fence is longer than any in the text."""
    shown = plain(text)
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", shown)), default=2))
    return f"{fence}\n{shown}\n{fence}"


def share(part: float | None) -> str:
    """A share for people; a dash for none."""
    return "-" if part is None else f"{part:.0%}"


@cache
def template(name: str) -> Template:
    """The template of that name. An undefined name in it is an error, and nothing is escaped unless a filter says how."""
    environment = Environment(
        loader=PackageLoader("warmcold.harness.reporting"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # no HTML: each target has its own filter
    )
    environment.filters |= {"docstring": docstring, "literal": literal, "cell": cell, "fenced": fenced, "share": share}
    return environment.get_template(name)

"""Console script and pytest plugin of warmcold: light, and loads each package's part only when it is asked for.

`engine`, `harness`, `mutations` and `fixtures` are common words. Where a stranger's package of that name comes first on
the path, this module says so instead of running the wrong code.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# Command -> module whose `app` runs it, whether that app is the command itself (and not a group that holds it), help.
_COMMANDS = {
    "verify": ("harness.cli", False, "Check that a model's KV reuse is right."),
    "replay": ("harness.cli", False, "Play one case file again."),
    "shrink": ("harness.cli", False, "Make a case file as small as it gets."),
    "conformance": ("harness.subject_cli", False, "Try the contract on an adapter for another engine."),
    "adjudicate": (
        "harness.subject_cli",
        False,
        "Float noise or dirty KV? Rule on two prompts, a case file or a server.",
    ),
    "generate": ("engine.cli", False, "Generate from a prompt, or several turns on one session."),
    "chat": ("engine.cli", False, "Talk to a model; see what each turn reused."),
    "inspect": ("engine.cli", False, "What was resolved of a model, and which reuse it is admitted to."),
    "mutate": ("mutations.cli", True, "Plant deliberate faults and see which check kills each."),
    "bench": ("engine.bench.cli", True, "Measure speed and memory, as ratios of one run."),
    "models": ("fixtures.cli", True, "Build the real models that are not committed."),
}


_PACKAGES = ("engine", "harness", "mutations", "fixtures")


class ShadowedError(Exception):
    """Somebody else's package has the name of one of ours."""


def ours(name: str) -> ModuleType:
    """Import one of our own modules, or ShadowedError where any of our names leads to a stranger's package.

    The places are looked up before anything is imported, so that no stranger's code runs.
    """
    here = Path(__file__).resolve().parent
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        places = [Path(path).resolve() for path in (spec.submodule_search_locations or [])] if spec else []
        if here / package not in places:
            where = places[0] if places else (spec.origin if spec else "nowhere")
            raise ShadowedError(
                f"{package!r} at {where} is not warmcold's (that is in {here}); run from another directory or rename yours"
            )
    return importlib.import_module(name)


def main() -> None:
    """The `warmcold` command: finds the package that has the command and hands over."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h"):
        print(_help())
    elif name == "--version":
        print(f"warmcold {importlib.metadata.version('warmcold')}")
    elif name not in _COMMANDS:
        sys.exit(_complain(f"no command {name!r}; `warmcold --help` lists them"))
    else:
        module, whole, _ = _COMMANDS[name]
        try:
            app = ours(module).app
        except ShadowedError as error:
            sys.exit(_complain(str(error)))
        app(args=arguments[whole:], prog_name=f"warmcold {name}" if whole else "warmcold")


def _help() -> str:
    lines = [f"  {name:<12}{text}" for name, (_, _, text) in _COMMANDS.items()]
    return "\n".join(
        [
            "Makes wrong KV-cache reuse visible: warm = cold = oracle, to the last bit.",
            "",
            "Usage: warmcold COMMAND [OPTIONS]     (warmcold COMMAND --help says more)",
            "",
            *lines,
            "  --version   Print the version.",
        ]
    )


def _complain(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def pytest_addoption(parser: Any, pluginmanager: Any) -> None:
    """pytest: register the harness's plugin, unless a stranger's `harness` is in the way."""
    try:
        pluginmanager.register(ours("harness.pytest_plugin"), "warmcold-harness")
    except ShadowedError as error:
        print(f"warmcold's pytest plugin is off: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()

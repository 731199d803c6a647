"""`warmcold bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from threadpoolctl import threadpool_limits

from ...command import Backends
from ..contract.errors import WarmcoldError
from .figures import Figure

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command("bench")
def bench_command(
    model: Annotated[Path, typer.Argument(help="A model directory or .onnx file.")],
    backend: Annotated[Backends, typer.Option("--backend", help="Backend to measure.")] = Backends.both,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds of shorter requests.")] = False,
    threads: Annotated[int, typer.Option(help="Threads of ONNX Runtime and of the BLAS.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, and nothing else.")] = False,
) -> None:
    """Measure the engine against raw ONNX Runtime, warm against cold, and memory against the cache: ratios of one run.

    Exit status: 0 measured, whatever the figures say; 2 a usage error.
    """
    try:
        from .measure import bench

        with threadpool_limits(limits=threads, user_api="blas"):
            sizes, figures = bench(
                model, backends=backend.names, quick=quick, threads=threads,
                say=lambda what: typer.echo(f"measuring {what}", err=True),
            )  # fmt: skip
    except WarmcoldError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(json.dumps(report(model, quick, threads, figures), indent=1))
    else:
        typer.echo(table(figures))
        typer.echo(f"median of {sizes.rounds} rounds (least to greatest), each arm once a round; {threads} threads")


def report(model: Path, quick: bool, threads: int, figures: Sequence[Figure]) -> dict[str, Any]:
    """The run as plain data."""
    return {
        "model": str(model),
        "quick": quick,
        "threads": threads,
        "figures": [figure.to_json() for figure in figures],
        "missed": [f"{figure.name}, {figure.arm}" for figure in figures if figure.met is False],
    }


def table(figures: Sequence[Figure]) -> str:
    """One line a figure: what, which arm, the ratio with its spread and both sides, and what was promised."""
    return "\n".join(_line(figure) for figure in figures)


def _line(figure: Figure) -> str:
    spread = f"({min(figure.samples):.2f} to {max(figure.samples):.2f})" if len(figure.samples) > 1 else ""
    sides = f"{figure.ours:.0f} / {figure.theirs:.0f} {figure.unit}"
    promise = "" if figure.bound is None else f"{'met' if figure.met else 'MISSED'}: at most {figure.bound:g}"
    what = f"{figure.name:32} {figure.arm:17} / {figure.against:12}"
    return f"{what} {figure.ratio:6.2f} {spread:16} {sides:32} {promise}".rstrip()

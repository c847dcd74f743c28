"""The followed tables on a terminal."""

from types import SimpleNamespace
from typing import Any

from rich.console import Console

from writetime.cli.follow import as_table
from writetime.core.config import Settings
from writetime.follow.steps import Step
from writetime.wire.watermarks import LandingReport


def pipeline(name: str, waiting: int = 0, fault: str | None = None) -> Any:
    """A table with some progress."""
    steps = [Step(Settings(), part, name, 1.0) for part in ("row events", "publishing", "view")]
    for step in steps:
        step.attempt(lambda: 1200)
    if fault:
        steps[2].begin()
        steps[2].attempt(lambda: raised(fault))
    return SimpleNamespace(
        name=name,
        waiting=waiting,
        steps=steps,
        events=steps[0],
        publishing=steps[1],
        view=steps[2],
        landing=SimpleNamespace(rows=5000, report=LandingReport(1.0)),
    )


def raised(fault: str) -> int:
    raise RuntimeError(fault)


def drawn(*tables: Any) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(as_table(tables))
    return captured.get()


def test_tables_that_fail_come_first() -> None:
    text = drawn(pipeline("shop.a"), pipeline("shop.b", waiting=70), pipeline("shop.c", fault="a bug"))
    assert text.index("shop.c") < text.index("shop.b") < text.index("shop.a")
    assert "view: RuntimeError: a bug" in text or "view: a bug" in text
    assert "5,000" in text
    assert "1,200, 0 ms" in text


def test_many_tables() -> None:
    text = drawn(*(pipeline(f"shop.t{n:03}") for n in range(60)))
    assert text.count("shop.t") == 20
    assert "60 tables" in text

"""The common parts of the attacks' commands: options, the numbers of inputs, and the exit status."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from tests.attack.report import Report


def options(seconds: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a command with `--seconds` (this long by default), `--rounds`, `--seed` and
    `--first`."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        @click.option("--seconds", type=float, help=f"how long to try; {seconds:.0f} by default")
        @click.option("--rounds", type=int, help="how many inputs to try")
        @click.option("--seed", type=int, default=1, show_default=True)
        @click.option("--first", type=int, default=0, show_default=True, help="the number of the first input")
        def main(**given: Any) -> None:
            if given["seconds"] is None and given["rounds"] is None:
                given["seconds"] = seconds
            run(**given)

        main.__doc__ = run.__doc__
        # Options of single commands.
        main.__click_params__ = [*getattr(run, "__click_params__", []), *main.__click_params__]  # type: ignore[attr-defined]
        return click.command()(main)

    return decorate


def numbers(first: int, rounds: int | None, seconds: float | None) -> Iterator[int]:
    """Yield the numbers of inputs, until there were so many, or for so long."""
    ends = None if seconds is None else time.monotonic() + seconds
    number = first
    while (rounds is None or number < first + rounds) and (ends is None or time.monotonic() < ends):
        yield number
        number += 1


def conclude(report: Report, attack: str, seed: int) -> None:
    """Print the results of an attack, and exit with an error if it found something."""
    print(report.text())
    if report.findings:
        raise SystemExit(f"try one again: python -m tests.attack.{attack} --seed {seed} --rounds 1 --first <input>")

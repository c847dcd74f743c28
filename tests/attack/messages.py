"""Attacks the readers of Kafka's topics: `python -m tests.attack.messages [--seconds N | --rounds N] [--seed S]
[--first N]`.

It starts ZooKeeper, Kafka and Cassandra. It sends mutated and meaningless messages among sound ones: to the topics of
changes, schemas and watermarks, which landing reads (see `landings`), and to the topic of events, which
`writetime sink` reads (see `storing`). Each input has a number, and follows from it and the seed: `--first` tries it
again.
"""

import os
import tempfile
import time
from pathlib import Path

import click

from tests.attack import storing
from tests.attack.landings import LIMITS, Landings
from tests.attack.report import Report
from tests.attack.watched import Watch, work
from tests.conftest import running_servers, write_settings
from writetime import config
from writetime.config import Settings
from writetime.ingest.topics import ensure_ingest_topics

# Messages to the sink for each trial of landing.
_EVENTS = 25


def attack(
    settings: Settings,
    home: Path,
    seed: int = 1,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    first: int = 0,
) -> Report:
    """Try so many inputs, or for so many seconds, on servers that run; return what came of them. The settings file in
    force (WRITETIME_CONFIG) has to have these settings."""
    report = Report()
    ends = None if seconds is None else time.monotonic() + seconds

    def command(following: int) -> list[str]:
        rest = ["--rounds", str(rounds - (following - first))] if rounds is not None else []
        rest += ["--seconds", f"{ends - time.monotonic():.3f}"] if ends is not None else []
        return ["-m", "tests.attack.messages", "--worker", "--seed", str(seed), "--first", str(following), *rest]

    Watch(command, report, LIMITS).run(first, ends)
    trials = rounds if rounds is not None else max(int((seconds or 0) * 2), 1)
    storing.attack(settings, home, seed, first * _EVENTS, trials * _EVENTS, report)
    return report


@click.command()
@click.option("--seconds", type=float, help="how long to try; 60 by default")
@click.option("--rounds", type=int, help="how many inputs to try")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--first", type=int, default=0, show_default=True, help="the number of the first input")
@click.option("--worker", is_flag=True, hidden=True)
def main(seconds: float | None, rounds: int | None, seed: int, first: int, worker: bool) -> None:
    """Attack the readers of topics, and print what was tried and found."""
    if seconds is None and rounds is None:
        seconds = 60.0
    if worker:
        work(Landings(config.load()).trials(seed, first, rounds, seconds), LIMITS)
        return
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, running_servers(Path(folder)) as settings:
        ensure_ingest_topics(settings)
        write_settings(settings, Path(folder) / "attack.toml")
        os.environ["WRITETIME_CONFIG"] = str(Path(folder) / "attack.toml")
        report = attack(settings, Path(folder), seed, rounds=rounds, seconds=seconds, first=first)
    print(report.text())
    if report.findings:
        raise SystemExit(f"try one again: python -m tests.attack.messages --seed {seed} --rounds 1 --first <input>")


if __name__ == "__main__":
    main()

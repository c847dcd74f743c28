"""Attacks the readers of Kafka's topics: `python -m tests.attack.messages [--seconds N | --rounds N] [--seed S]
[--first N]`.

It starts ZooKeeper, Kafka and Cassandra. It sends mutated and meaningless messages among valid ones: to the topics of
changes, schemas and watermarks, which landing reads (see `landings`), and to the topic of events, which
`writetime sink` reads (see `storing`). Each input follows from its number and the seed, and `--first` tries it again.
"""

import os
import tempfile
from pathlib import Path

import click

from tests.attack import storing
from tests.attack.command import conclude, options
from tests.attack.landings import LIMITS, Landings
from tests.attack.report import Report
from tests.attack.watched import watch, work
from tests.support.servers import running_servers
from tests.support.settings import write_settings
from writetime.core import config
from writetime.core.config import Settings
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
    """Try so many inputs, or for so many seconds, on servers that run; return the results. The settings file in
    force (WRITETIME_CONFIG) has to have these settings."""
    report = Report()
    watch("messages", seed, rounds, seconds, first, LIMITS, report)
    trials = rounds if rounds is not None else max(int((seconds or 0) * 2), 1)
    storing.attack(settings, home, seed, first * _EVENTS, trials * _EVENTS, report)
    return report


@options(seconds=60.0)
@click.option("--worker", is_flag=True, hidden=True)
def main(seconds: float | None, rounds: int | None, seed: int, first: int, worker: bool) -> None:
    """Attack the readers of topics, and print the tries and findings."""
    if worker:
        work(Landings(config.load()).trials(seed, first, rounds, seconds), LIMITS)
        return
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, running_servers(Path(folder)) as settings:
        ensure_ingest_topics(settings)
        write_settings(settings, Path(folder) / "attack.toml")
        os.environ["WRITETIME_CONFIG"] = str(Path(folder) / "attack.toml")
        report = attack(settings, Path(folder), seed, rounds=rounds, seconds=seconds, first=first)
    conclude(report, "messages", seed)


if __name__ == "__main__":
    main()

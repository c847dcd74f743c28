"""The shell commands of replay queues: `writetime replay ...`."""

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import BinaryIO

import click

from writetime.core import config
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.handlers import load_handler
from writetime.core.instants import parse_time
from writetime.core.logs import log_clients
from writetime.core.signals import stopped_by_signal
from writetime.replay import Publisher, Subscriber, check, forget, lag, rebuild, replay, seek, trim
from writetime.replay.batch_reading import require_queue

log = logging.getLogger(__name__)

_WATCH_SECONDS = 0.2


@click.group(name="replay")
def replay_group() -> None:
    """Publish batches, process them, and read them again."""


@replay_group.command()
@click.argument("queue")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--producer", help="Name of the publisher; with --sequence, publishing again changes nothing.")
@click.option("--sequence", type=int, help="The producer's own batch number, which must rise.")
def publish(queue: str, file: BinaryIO, producer: str | None, sequence: int | None) -> None:
    """Publish the lines of a file, or of standard input, as one batch, and print its id."""
    items = file.read().splitlines()
    with Publisher(config.load(), queue) as publisher:
        click.echo(f"{queue}-{publisher.publish(items, producer=producer, sequence=sequence)}")


@replay_group.command()
@click.argument("queue")
@click.argument("processor")
@click.option("--handler", "path", required=True, help="module:function, called with each batch.")
@click.option("--until-idle", is_flag=True, help="Stop when no batch is left.")
def work(queue: str, processor: str, path: str, until_idle: bool) -> None:
    """Process batches in order until SIGTERM or Ctrl-C. The current batch is completed first."""
    log_clients()
    handler = load_handler(path)
    stop = stopped_by_signal()
    settings = config.load()
    with Subscriber(settings, queue, processor) as subscriber, _watching(subscriber, settings, stop):
        try:
            count = subscriber.run(handler, stop, until_idle=until_idle)
        except SystemExit as e:
            # Its status might be that of a success.
            raise WritetimeError(
                f"handler {path} has called sys.exit({e.code!r}): its batch is not done, and the next start repeats "
                "it; let the handler return, or raise an error"
            ) from None
        click.echo(f"{pluralize(count, 'batch')}")


@replay_group.command()
@click.argument("queue")
@click.option("--from", "first", type=int, help="The first batch; default: the oldest that exists.")
@click.option("--to", "last", type=int, help="The last batch; default: the newest.")
def read(queue: str, first: int | None, last: int | None) -> None:
    """Print batches as JSON lines: number, time, items (text, or hexadecimal after `0x` if they are not UTF-8)."""
    for batch in replay(_settings(queue), queue, first, last):
        at = batch.seal.published_at.isoformat()
        click.echo(json.dumps({"n": batch.n, "published_at": at, "items": [_text(item) for item in batch.items]}))


@replay_group.command(name="seek")
@click.argument("queue")
@click.argument("processor")
@click.argument("to")
def seek_command(queue: str, processor: str, to: str) -> None:
    """Set the next batch of a processor: a number, or a time (ISO 8601, UTC if it has no offset)."""
    click.echo(f"next: {queue}-{seek(_settings(queue), queue, processor, _place(to))}")


@replay_group.command(name="lag")
@click.argument("queue")
def lag_command(queue: str) -> None:
    """Print how far each processor is behind, as JSON lines."""
    for found in lag(_settings(queue), queue):
        click.echo(json.dumps(asdict(found)))


@replay_group.command(name="rebuild")
@click.argument("queue")
def rebuild_command(queue: str) -> None:
    """Restore from the database the records of a queue that ZooKeeper lost."""
    newest, processors = rebuild(_settings(queue), queue)
    click.echo(f"newest batch {newest}; cursors restored: {', '.join(processors) or 'none'}")


@replay_group.command(name="check")
@click.argument("queue")
def check_command(queue: str) -> None:
    """Read all batches and compare them with the sealed checksums. The exit status is 1 if a batch is damaged or
    missing.
    """
    found = check(_settings(queue), queue)
    gone = f"; those up to {found.gone} are gone" if found.gone else ""
    counts = pluralize(found.batches, "batch"), pluralize(found.items, "item"), pluralize(len(found.faults), "fault")
    click.echo(", ".join(counts) + gone)
    if found.faults:
        raise WritetimeError("\n".join(found.faults))


@replay_group.command(name="trim")
@click.argument("queue")
def trim_command(queue: str) -> None:
    """Delete batches that all processors have processed and that are older than the queue's `replay.keep_days`."""
    found = trim(_settings(queue), queue)
    waits = f"; those up to {found.due} are old enough, but processor {found.waits_for} has not processed all of them"
    gone = f"deleted {pluralize(found.deleted, 'batch')}; those up to {found.gone} are gone"
    click.echo(gone + (waits if found.waits_for else ""))


@replay_group.command(name="forget")
@click.argument("queue")
@click.argument("processor")
def forget_command(queue: str, processor: str) -> None:
    """Forget a processor that no longer exists; `trim` waits for all known processors."""
    forget(_settings(queue), queue, processor)
    click.echo(f"forgotten: {processor}")


@contextmanager
def _watching(subscriber: Subscriber, settings: Settings, stop: threading.Event) -> Iterator[None]:
    """End the process if a handler does not end, because nothing can end its thread. Its batch is repeated."""
    own, over = settings.replay, threading.Event()

    def watch() -> None:
        asked: float | None = None
        while not over.wait(_WATCH_SECONDS):
            now = time.monotonic()
            asked = now if asked is None and stop.is_set() else asked
            reason = None
            if asked is not None and now - asked > own.drain_seconds:
                reason = f"replay.drain_seconds ({own.drain_seconds:g} s) after the signal"
            if (working := subscriber.working) is None:
                continue
            if now - working[1] > own.time_limit_seconds:
                reason = f"within replay.time_limit_seconds ({own.time_limit_seconds:g} s)"
            if reason is not None:
                log.error(
                    "batch %s is not done: its handler has not ended %s; the next start repeats it", working[0], reason
                )
                os._exit(1)

    threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _settings(queue: str) -> Settings:
    """Return the settings, if the queue exists."""
    settings = config.load()
    require_queue(settings, queue)
    return settings


def _place(text: str) -> int | datetime:
    place = int(text) if text.isdigit() else parse_time(text)
    if place is None:
        raise WritetimeError(f"{text!r} is neither the number of a batch nor a time (ISO 8601)")
    return place


def _text(item: bytes) -> str:
    try:
        return item.decode()
    except UnicodeDecodeError:
        return f"0x{item.hex()}"

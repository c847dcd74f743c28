"""The shell commands of the work queue: `writetime work` and `writetime queue`."""

import json
import logging
from dataclasses import asdict
from typing import Any
from uuid import UUID

import click

from writetime.core import config
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.handlers import load_handler
from writetime.core.instants import instant_text
from writetime.core.json_texts import from_json
from writetime.core.logs import log_clients
from writetime.core.printing import printable
from writetime.core.signals import stopped_by_signal
from writetime.workqueue import controls, dead_items
from writetime.workqueue.enqueue import Enqueuer, NewItem
from writetime.workqueue.hints import KafkaHint
from writetime.workqueue.inspect import inspecting
from writetime.workqueue.metrics import WorkerMetrics
from writetime.workqueue.recurrence import Schedule
from writetime.workqueue.worker import Worker


@click.command()
@click.option("--queue", "names", multiple=True, required=True, help="A queue to process; may be repeated.")
@click.option("--handler", "paths", multiple=True, required=True, help="module:function, one per queue.")
@click.option("--until-idle", is_flag=True, help="Stop when no item is left, also of those that wait for a retry.")
def work(*, names: tuple[str, ...], paths: tuple[str, ...], until_idle: bool) -> None:
    """Run a handler for the items of a queue until SIGTERM or Ctrl-C. It ends gracefully."""
    if len(names) != len(paths):
        raise WritetimeError(
            f"{pluralize(len(names), 'queue')} and {pluralize(len(paths), 'handler')}; name one handler for each queue"
        )
    settings = config.load()
    handlers = {name: load_handler(path) for name, path in zip(names, paths, strict=True)}
    logging.getLogger("writetime").setLevel(logging.INFO)
    log_clients()
    stop = stopped_by_signal()
    hint = KafkaHint(settings) if settings.workqueue.hints else None
    own = settings.workqueue
    metrics = None if own.metrics_port is None else WorkerMetrics(own.metrics_host, own.metrics_port)
    outcomes = Worker(settings, handlers, hint, metrics).run(stop, until_idle=until_idle)
    click.echo(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) or "no items")


@click.group(name="queue")
def queue_group() -> None:
    """Inspect and control work queues, enqueue items, and redrive dead letters."""


@queue_group.command(name="inspect")
@click.argument("queue", required=False)
@click.option("--dead-letters", "letters", is_flag=True, help="List the dead letters.")
def inspect_command(queue: str | None, letters: bool) -> None:
    """Show the state of one queue, or of all, as JSON lines."""
    settings = config.load()
    with inspecting(settings) as inspector:
        for name in inspector.queues() if queue is None else [queue]:
            if not letters:
                state = inspector.state(name)
                click.echo(json.dumps({"depth": state.depth, **asdict(state)}))
                continue
            for letter in dead_items.dead_letters(settings, name):
                redriven = f"redriven as {letter.redriven_as}" if letter.redriven_as else "-"
                click.echo(
                    f"{letter.item_id}\t{instant_text(letter.dead_at // 1000 * 1_000_000)}\t"
                    f"{pluralize(letter.attempts, 'attempt')}\t"
                    f"{printable(letter.error)}\t{redriven}\t{printable(letter.payload[:80])}"
                )


@queue_group.command(name="enqueue")
@click.argument("queue")
@click.argument("payload")
@click.option("--key", help="Items of a key run in order.")
@click.option("--delay", default=0.0, show_default=True, help="Seconds until the item may run.")
@click.option("--time-limit", type=float, help="Seconds that one attempt may take, in place of the queue's limit.")
@click.option("--unique", "name", help="Print the id of the item that has this name already, if there is one.")
@click.option("--unique-seconds", default=86_400.0, show_default=True, help="How long an item has its name.")
def enqueue_command(
    queue: str,
    payload: str,
    *,
    key: str | None,
    delay: float,
    time_limit: float | None,
    name: str | None,
    unique_seconds: float,
) -> None:
    """Enqueue one item with a JSON payload, and print its id."""
    value = _json(payload)
    with Enqueuer(config.load()) as enqueuer:
        item = NewItem(value, key, delay, None, time_limit, name, unique_seconds)
        click.echo(enqueuer.enqueue_many(queue, [item])[0])


def _json(payload: str) -> Any:
    try:
        return from_json(payload)
    except (ValueError, RecursionError) as e:
        raise WritetimeError(f"the payload is not JSON: {e}") from None


@queue_group.command(name="schedule")
@click.argument("queue")
@click.argument("name")
@click.argument("cron")
@click.argument("payload", default="{}")
@click.option("--zone", default="UTC", show_default=True, help="The time zone, as Europe/Berlin.")
@click.option("--key", help="Items of a key run in order.")
@click.option("--time-limit", type=float, help="Seconds that one attempt may take, in place of the queue's limit.")
def schedule_command(
    queue: str, name: str, cron: str, payload: str, *, zone: str, key: str | None, time_limit: float | None
) -> None:
    """Enqueue an item at each time of a cron expression, in place of a schedule of this name. The payload is a JSON
    object.
    """
    schedule = Schedule(name, cron, _json(payload), zone, key, time_limit)
    click.echo("scheduled" if controls.schedule(config.load(), queue, schedule) else "was scheduled before")


@queue_group.command(name="unschedule")
@click.argument("queue")
@click.argument("name")
def unschedule_command(queue: str, name: str) -> None:
    """Delete a schedule."""
    click.echo("unscheduled" if controls.unschedule(config.load(), queue, name) else "was not scheduled")


@queue_group.command(name="schedules")
@click.argument("queue")
def schedules_command(queue: str) -> None:
    """Show the schedules of a queue with their next times, as JSON lines."""
    for state in controls.schedules(config.load(), queue):
        click.echo(json.dumps({**asdict(state.schedule), "next_slot": state.next_slot}))


@queue_group.command(name="event")
@click.argument("queue")
@click.argument("item_id", type=click.UUID)
@click.argument("name")
@click.argument("payload", default="null")
def event_command(queue: str, item_id: UUID, name: str, payload: str) -> None:
    """Send an event with a JSON payload to an item, whose handler may wait for it."""
    sent = controls.send_event(config.load(), queue, item_id, name, _json(payload))
    click.echo("sent" if sent else "not sent: the item is finished, or has another event of this name")


@queue_group.command(name="item")
@click.argument("queue")
@click.argument("item_id", type=click.UUID)
@click.option("--wait", default=0.0, show_default=True, help="Seconds to wait until the item is finished.")
def item_command(queue: str, item_id: UUID, wait: float) -> None:
    """Show what became of an item, as JSON."""
    _show(controls.item_state(config.load(), queue, item_id, wait_seconds=wait))


@queue_group.command(name="cancel")
@click.argument("queue")
@click.argument("item_id", type=click.UUID, required=False)
@click.option("--wait", default=10.0, show_default=True, help="Seconds to wait until the item is finished.")
@click.option("--all", "everything", is_flag=True, help="All unfinished items.")
@click.option("--key", help="All unfinished items of this key.")
@click.option("--older-than", type=click.FloatRange(min=0), help="All unfinished items that are so many seconds old.")
def cancel_command(
    queue: str, item_id: UUID | None, *, wait: float, everything: bool, key: str | None, older_than: float | None
) -> None:
    """Cancel an item, and show its state as JSON: one that waits does not run, and one that runs is asked to end. Or
    cancel all unfinished items that fit, without waiting for them.
    """
    settings = config.load()
    if (item_id is not None) == (everything or key is not None or older_than is not None):
        raise WritetimeError("name either an item, or which items to cancel: --all, --key, --older-than")
    if item_id is not None:
        _show(controls.cancel(settings, queue, item_id, wait_seconds=wait))
        return
    count = controls.cancel_all(settings, queue, key=key, older_than_seconds=older_than)
    click.echo(f"{pluralize(count, 'item')} to be cancelled")


@queue_group.command(name="pause")
@click.argument("queue")
@click.option("--key", help="Only the items of this key.")
def pause_command(queue: str, key: str | None) -> None:
    """Start no more items until `resume`. Items that run end as usual."""
    click.echo("paused" if controls.pause(config.load(), queue, key) else "was paused before")


@queue_group.command(name="resume")
@click.argument("queue")
@click.option("--key", help="Only the items of this key.")
def resume_command(queue: str, key: str | None) -> None:
    """Start items again after `pause`."""
    click.echo("resumed" if controls.resume(config.load(), queue, key) else "was not paused")


def _show(state: controls.ItemState) -> None:
    click.echo(json.dumps(asdict(state), default=str))


@queue_group.command(name="redrive")
@click.argument("queue")
@click.option("--key", help="Only those of this key.")
@click.option("--error", help="Only those whose error contains this text.")
def redrive_command(queue: str, key: str | None, error: str | None) -> None:
    """Enqueue the dead letters that were not redriven yet again, as new items."""
    click.echo(f"{dead_items.redrive(config.load(), queue, key=key, error=error)} redriven")

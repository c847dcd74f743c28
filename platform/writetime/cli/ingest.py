"""The shell commands `writetime serve | sink | dead-letters`."""

import click

from writetime.clients.kafka import beginning_offsets, end_offsets
from writetime.core import config
from writetime.core.logs import log_clients
from writetime.core.printing import printable
from writetime.core.signals import stopped_by_signal
from writetime.ingest import dead_letter_topic, event_sink


@click.command()
def serve() -> None:
    """Accept events over HTTP until SIGTERM or Ctrl-C, then drain."""
    # Only this command needs writetime[http].
    from writetime.http import ingress

    log_clients()
    ingress.serve(config.load())


@click.command(name="sink")
def run_sink() -> None:
    """Store events from Kafka until SIGTERM or Ctrl-C, then drain and commit."""
    log_clients()
    stop = stopped_by_signal()
    outcomes = event_sink.run(config.load(), stop)
    click.echo(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) or "no messages")


@click.group(name="dead-letters")
def dead_letters() -> None:
    """List the messages that could not be stored, or send them again."""


@dead_letters.command(name="list")
def list_dead_letters() -> None:
    """Print every dead letter: its origin, the reason, and the start of its value."""
    settings = config.load()
    topic = settings.ingest.dead_letter_topic
    for letter in dead_letter_topic.read(settings, beginning_offsets(settings, topic), end_offsets(settings, topic)):
        value = (letter.value or b"")[:80].decode(errors="replace")
        click.echo("\t".join(map(printable, (letter.origin, letter.reason, value))))


@dead_letters.command()
def redrive() -> None:
    """Send the dead letters that were not redriven yet back to the topic of events."""
    settings = config.load()
    done = dead_letter_topic.redrive(settings)
    click.echo(f"{done.count} redriven")
    if done.refused:
        click.echo(
            f"{done.refused} refused as too large: they are dead letters again; raise max.message.bytes of "
            f"{settings.ingest.topic}, then redrive"
        )
    if done.lost:
        click.echo(
            f"{done.lost} shortened, and no longer whole in {settings.ingest.topic}: they are dead letters again"
        )

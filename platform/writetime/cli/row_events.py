"""`writetime row-events | publish KS.TABLE`."""

import json
import sys
from contextlib import suppress

import click

from writetime.cli.text_tables import print_parts
from writetime.core import config
from writetime.core.counts import pluralize
from writetime.core.printing import json_lines
from writetime.delta.bucketed_table import Conflict
from writetime.lake.projection import ROW_EVENTS
from writetime.lake.table import open_table
from writetime.row_events.messages import event_avro
from writetime.row_events.publish import ForNewTopic
from writetime.row_events.publish import publish as publish_events
from writetime.row_events.stream import extend, require_stream
from writetime.row_events.stream_files import events_since
from writetime.view.upkeep import keep_up
from writetime.wire.topic_names import row_events_topic


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option("--from", "first", default=1, show_default=True, help="The first batch (`sequence`) to print.")
@click.option("--format", "form", type=click.Choice(["jsonl", "table", "avsc"]), default="jsonl", show_default=True)
def row_events(*, table: str, first: int, form: str) -> None:
    """Print the row events of a table, or their Avro schema. They are printed in the lake's order."""
    lake_table = open_table(config.load(), table)
    if form == "avsc":
        click.echo(json.dumps(event_avro(lake_table.schema()), indent=2))
        return
    require_stream(lake_table)
    if form == "jsonl":
        for part in events_since(lake_table, first):
            sys.stdout.buffer.writelines(json_lines(part))
    else:
        print_parts(["sequence", "kind", "before", "after"], events_since(lake_table, first))


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option("--lake-only", is_flag=True, help="Store the events in the lake only, and send none to Kafka.")
@click.option(
    "--new-topic",
    type=click.Choice(["all", "later"]),
    help="The events to publish to a new topic, after the old one was lost: all events in the lake, or only those "
    "that are not published yet.",
)
def publish(*, table: str, lake_only: bool, new_topic: ForNewTopic | None) -> None:
    """Publish the row events of a table to Kafka. It first computes the events since the last batch, and stores them in
    the lake.
    """
    settings = config.load()
    lake_table = open_table(settings, table)
    click.echo(f"row events {pluralize(extend(lake_table), 'event')} added")
    if not lake_only:
        count = publish_events(settings, lake_table, new_topic)
        click.echo(f"topic      {pluralize(count, 'event')} published to {row_events_topic(table)}")
    # A conflict is not an error: the next batches try again.
    with suppress(Conflict):
        if position := ROW_EVENTS.position(lake_table.row_events.load()):
            keep_up(settings, lake_table, position.batch.sequence, [ROW_EVENTS])

"""`writetime erase KS.TABLE`."""

from pathlib import Path

import click
import orjson

from writetime.core import config
from writetime.erasure.certificate import erase as erase_places
from writetime.erasure.keys import ranges_of
from writetime.lake.table import open_table


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option(
    "--key",
    "given",
    multiple=True,
    metavar="KEY",
    help="The partition key, and for rows the first clustering columns, as a JSON object, such as '{\"id\": 7}', "
    "or as 0x and hexadecimal digits.",
)
@click.option("--keys", "file", type=click.Path(exists=True, dir_okay=False), help="A file with one such key per line.")
@click.option(
    "--delete-records",
    is_flag=True,
    help="Delete all messages in the table's topics that have landed, and all of its row events in Kafka.",
)
@click.option("--without-kafka", is_flag=True, help="The table has no topics, because it was only backfilled.")
def erase(*, table: str, given: tuple[str, ...], file: str | None, delete_records: bool, without_kafka: bool) -> None:
    """Erase partitions or rows from all that the lake keeps of them, and print a certificate.

    The database must have deleted them before. Run it again if it ends early.
    """
    lines = [*given, *(Path(file).read_text().splitlines() if file else ())]
    lake = open_table(settings := config.load(), table)
    ranges = ranges_of([text for line in lines if (text := line.strip())], lake.schema())
    done = erase_places(settings, lake, ranges, kafka=not without_kafka, delete_records=delete_records)
    click.echo(orjson.dumps(done, option=orjson.OPT_INDENT_2))

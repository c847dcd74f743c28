"""`writetime erase KS.TABLE`."""

import json
from pathlib import Path
from typing import Any

import click
import orjson

from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.erasure.certificate import erase as erase_places
from writetime.erasure.places import in_places, place_of
from writetime.files.key_ranges import KeyRanges, joined
from writetime.lake.table import open_table
from writetime.lookup.keys import label, places_of_keys
from writetime.lookup.matching import keys_table
from writetime.schema.table import TableSchema
from writetime.schema.types import Native

# Values of other types have several forms in JSON.
_IN_JSON = [Native(n) for n in ("tinyint", "smallint", "int", "bigint", "ascii", "text", "uuid", "timeuuid")]


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
    texts = [text for line in lines if (text := line.strip())]
    if not texts:
        raise WritetimeError("name the partitions or rows with --key or --keys")
    lake = open_table(settings := config.load(), table)
    ranges = joined([_range(text, lake.schema()) for text in texts])
    done = erase_places(settings, lake, ranges, kafka=not without_kafka, delete_records=delete_records)
    click.echo(orjson.dumps(done, option=orjson.OPT_INDENT_2))


def _range(text: str, schema: TableSchema) -> KeyRanges:
    """Return the partition, or the rows, of a key as the command takes it."""
    if text.startswith("0x"):
        try:
            return in_places([place_of(*(bytes.fromhex(part.removeprefix("0x")) for part in text.split("/", 1)))])
        except ValueError:
            raise WritetimeError("a key that begins with 0x has other characters than hexadecimal digits") from None
    found = _places(text, schema)
    if found is None:
        raise WritetimeError(
            f"{schema.full_name}: a key gives no serialised key. It is a JSON object of all columns of the partition "
            "key, and for single rows the first clustering columns. If one of them is not an integer, a text or a "
            "UUID, give the key in serialised form, as the column `key` of the changes has it (0x...), and for single "
            "rows the position, as the column `position` has it (0x.../0x...)"
        )
    return found


def _places(text: str, schema: TableSchema) -> KeyRanges | None:
    try:
        key: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(key, dict):
        return None
    columns = [*schema.partition_key, *schema.clustering]
    named = columns[: len(key)]
    if len(named) < len(schema.partition_key) or key.keys() != {label(column) for column in named}:
        return None
    if any(column.type not in _IN_JSON for column in named):
        return None
    found = places_of_keys(keys_table([key], schema), schema)
    return found if found is not None and len(found.keys) == 1 else None

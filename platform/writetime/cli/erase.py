"""`writetime erase KS.TABLE`."""

import json
from pathlib import Path
from typing import Any

import click
import orjson

from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.erasure.certificate import erase as erase_partitions
from writetime.files.key_ranges import KeyRanges
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
    help="The partition key as a JSON object, such as '{\"id\": 7}', or serialised, as 0x and hexadecimal digits.",
)
@click.option("--keys", "file", type=click.Path(exists=True, dir_okay=False), help="A file with one such key per line.")
@click.option(
    "--delete-records",
    is_flag=True,
    help="Delete all messages in the table's topics that have landed, and all of its row events in Kafka.",
)
@click.option("--without-kafka", is_flag=True, help="The table has no topics, because it was only backfilled.")
def erase(*, table: str, given: tuple[str, ...], file: str | None, delete_records: bool, without_kafka: bool) -> None:
    """Erase partitions from all that the lake keeps of them, and print a certificate.

    The database must have deleted them before. Run it again if it ends early.
    """
    lines = [*given, *(Path(file).read_text().splitlines() if file else ())]
    texts = [text for line in lines if (text := line.strip())]
    if not texts:
        raise WritetimeError("name the partitions with --key or --keys")
    lake = open_table(settings := config.load(), table)
    keys = [key for text in texts for key in _serialised(text, lake.schema())]
    done = erase_partitions(settings, lake, keys, kafka=not without_kafka, delete_records=delete_records)
    click.echo(orjson.dumps(done, option=orjson.OPT_INDENT_2))


def _serialised(text: str, schema: TableSchema) -> list[bytes]:
    """Return the serialised partition key of a key as the command takes it."""
    if text.startswith("0x"):
        try:
            return [bytes.fromhex(text[2:])]
        except ValueError:
            raise WritetimeError("a key that begins with 0x has other characters than hexadecimal digits") from None
    found = _places(text, schema)
    if found is None:
        raise WritetimeError(
            f"{schema.full_name}: a key gives no serialised partition key. It is a JSON object of all columns of the "
            "partition key. If one of them is not an integer, a text or a UUID, give the key in serialised form, as "
            "the column `key` of the changes has it (0x...)"
        )
    return found.keys.to_pylist()


def _places(text: str, schema: TableSchema) -> KeyRanges | None:
    try:
        key: Any = json.loads(text)
    except ValueError:
        return None
    names = {label(column) for column in schema.partition_key}
    if not isinstance(key, dict) or not key.keys() >= names:
        return None
    if key.keys() != names:
        raise WritetimeError(
            f"{schema.full_name}: only whole partitions are erased, and not single rows: name the columns of the "
            f"partition key only ({', '.join(sorted(names))})"
        )
    if any(column.type not in _IN_JSON for column in schema.partition_key):
        return None
    found = places_of_keys(keys_table([key], schema), schema)
    return found if found is not None and len(found.keys) == 1 else None

"""The table of docs/data-types.md has every native type, and the types that the code gives to each row's CQL type.

Oracle: the code; other tests compare its types with the values that each reader finds.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.documents import ROOT
from writetime.schema.connect import connect_name
from writetime.schema.mapping import NATIVES, arrow_type, avro_type, spark_type
from writetime.schema.types import CqlType, Native, Udt, parse_cql

ADDRESS = Udt("ks", "address", (("street", Native("text")), ("zip", Native("int"))), frozen=True)


def table() -> Iterator[list[str]]:
    """Yield the rows of the table: the CQL type, and its type in Arrow, Spark, Avro and Kafka Connect."""
    for line in (ROOT / "docs" / "data-types.md").read_text().splitlines():
        if line.startswith("| `"):
            yield [cell.strip(" `") for cell in line.split("|")[1:6]]


def cql_type(text: str) -> CqlType:
    return ADDRESS if "address" in text else parse_cql(text)


def shown(avro: Any) -> str:
    """Return an Avro type as the table shows it."""
    if not isinstance(avro, dict):
        return avro
    if avro["type"] == "array":
        return "array of records" if shown(avro["items"]) == "record" else "array"
    return f"{avro['type']} ({avro['logicalType']})" if "logicalType" in avro else avro["type"]


@pytest.mark.parametrize("row", table(), ids=lambda row: row[0])
def test_the_types_of_a_row_are_those_of_the_code(row: list[str]) -> None:
    of_row = cql_type(row[0])
    assert row[1:] == [str(arrow_type(of_row)), spark_type(of_row), shown(avro_type(of_row)), connect_name(of_row)]


def test_the_table_has_all_native_types() -> None:
    assert NATIVES.keys() <= {row[0] for row in table()}

"""The names of columns in the lake: labels, which differ by more than case.

A column's label is its CQL name, unless the table already has a similar name (`schema.names`), or a name that is
similar to the column's field in changes (`changes.labelled_field`). Then the label is the first free one of `<name>_2`,
`<name>_3`, .... A column keeps its label forever, even while it is dropped, because its field stays in the Delta
tables. So labels are recorded in the property `writetime.names` of `changes`, as JSON by CQL name.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from writetime.changes.model import RESERVED, labelled_field
from writetime.delta.parquet import PARTITION, PLACE
from writetime.schema.names import TakenNames, candidates, fold
from writetime.schema.table import Column, TableSchema

NAMES = "writetime.names"


def extend(recorded: Mapping[str, str], columns: Iterable[Column]) -> dict[str, str]:
    """Return the labels by CQL name, with new ones for columns that have none yet.

    If several columns are new, those in lower case come first.
    """
    labels = dict(recorded)
    in_views = TakenNames([PARTITION, PLACE, *labels.values()])
    in_changes = TakenNames([PARTITION, *RESERVED, *map(labelled_field, labels.values())])
    new = {column.name for column in columns} - labels.keys()
    for name in sorted(new, key=lambda n: (n != fold(n), n.encode())):
        label = next(c for c in candidates(name) if c not in in_views and labelled_field(c) not in in_changes)
        labels[name] = label
        in_views.add(label)
        in_changes.add(labelled_field(label))
    return labels


def recorded_labels(recorded: str | None, schema: TableSchema) -> dict[str, str]:
    """Return the labels that a table's property records; for a table without this property, the CQL names."""
    if recorded is not None:
        return json.loads(recorded)
    return {c.name: c.name for c in (*schema.columns, *schema.dropped)}


def labelled(schema: TableSchema, labels: Mapping[str, str]) -> TableSchema:
    """Return a schema whose columns have these labels, by CQL name."""

    def all_of(columns: tuple[Column, ...]) -> tuple[Column, ...]:
        return tuple(replace(column, label=labels[column.name]) for column in columns)

    return replace(
        schema,
        partition_key=all_of(schema.partition_key),
        clustering=all_of(schema.clustering),
        static=all_of(schema.static),
        regular=all_of(schema.regular),
    )


def newly_labelled(schema: TableSchema) -> TableSchema:
    """Return a schema with the labels that a new table of the lake would get."""
    return labelled(schema, extend({}, schema.columns))


def without_labels(schema: TableSchema) -> TableSchema:
    """Return a schema as it is outside the lake."""
    return labelled(schema, {column.name: "" for column in schema.columns})

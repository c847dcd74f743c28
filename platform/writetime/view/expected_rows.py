"""The expectations of a table's entry, `expect`, and the check of rows of the view against them before they are
published.

New rows of a view are checked against the expectations about each row, even if they are the whole view. Dagster checks
expectations on all rows together on a schedule. Without Spark, pandas checks the rows in portions, because a batch has
few rows, and a Spark job would take longer than the batch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from writetime.clients import great_expectations
from writetime.clients.great_expectations import gxe
from writetime.core.arrow import pc
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.extras import WhenUsed, require
from writetime.delta.parquet import PARTITION, WrittenFile, conform, open_file, uncompressed_size
from writetime.files import merging
from writetime.files.merging import portions
from writetime.lake.followed_tables import FollowedTable, read_entries
from writetime.lake.table import LakeTable, view_schema
from writetime.schema.table import TableSchema

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations import exceptions
    from great_expectations.expectations import expectation as kinds
    from great_expectations.expectations import expectation_configuration as configuration
else:
    exceptions, kinds, configuration = map(
        WhenUsed,
        (
            "great_expectations.exceptions",
            "great_expectations.expectations.expectation",
            "great_expectations.expectations.expectation_configuration",
        ),
    )


class Unexpected(WritetimeError):
    """Rows do not meet the expectations of the table's entry."""


def remedy_of(table: str) -> str:
    """Return the remedy for rows of a table that are not as expected."""
    return f"correct these rows in the database, or `expect` in [tables.{table}]"


class ExpectedRows:
    """Checks the new rows of a table's view, as `staged` of `view.refreshing.refresh`."""

    def __init__(self, table: LakeTable, entry: FollowedTable) -> None:
        """Check a table.

        Raises:
            ModuleNotFoundError: Great Expectations is not installed.
            WritetimeError: as `of_entry`.
        """
        require("great_expectations")
        self._table = table
        self._expected = of_each_row(of_entry(entry))

    def __call__(self, files: Sequence[WrittenFile], *, whole: bool) -> None:
        """Validate rows, all of the view or those that changed, in portions. Raise `Unexpected` if they are not as
        expected.
        """
        del whole
        if not files or not self._expected:
            return
        schema = self._table.schema()

        def frames() -> "Iterator[pd.DataFrame]":
            for portion in portions(self._parts(files, view_schema(schema)), lambda rows: rows.nbytes):
                yield _frame(pa.concat_tables(portion))

        found = great_expectations.validate_portions(frames, self._table.name, self._expected, key_columns(schema))
        if failed := great_expectations.failed(found):
            # A lost view stays empty, too.
            stays = "stays as it was" if self._table.view.load().files else "stays empty"
            remedy = remedy_of(self._table.name)
            raise Unexpected(f"the view {stays}, because rows are not as expected: {failed}; {remedy}")

    def _parts(self, files: Sequence[WrittenFile], schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of files in parts of a portion at most, by their size on average. Row groups with many nulls
        may be far larger. Each part is of one row group, so that many large rows in a row are not read at once.
        """
        storage = self._table.view.storage
        for file in files:
            most = file.rows * merging.PORTION_BYTES // max(1, uncompressed_size(storage, file.path))
            with open_file(storage, file.path) as source:
                names = [name for name in schema.names if name in source.schema_arrow.names]
                for group in range(source.num_row_groups):
                    for batch in source.iter_batches(max(1, most), row_groups=[group], columns=names):
                        yield conform(pa.Table.from_batches([batch]), schema, file.path)


def check_of(settings: Settings, table: LakeTable) -> ExpectedRows | None:
    """Return the check of a table's new rows by its entry in the settings; None if it expects nothing.

    Raises:
        ModuleNotFoundError: Great Expectations is not installed.
        WritetimeError: the entry is invalid.
    """
    entries, refused = read_entries(settings)
    for entry in refused:
        if entry.name == table.name:
            raise WritetimeError(entry.reason)
    found = next((entry for entry in entries if entry.name == table.name and entry.entry.expect), None)
    return found and ExpectedRows(table, replace(found, schema=table.schema()))


def key_columns(schema: TableSchema) -> list[str]:
    """Return the columns of a table's primary key, which identify a row of its view."""
    return [column.name for column in (*schema.partition_key, *schema.clustering)]


def of_entry(table: FollowedTable) -> "list[gxe.Expectation]":
    """Return the expectations in a table's entry about its view. Raise `WritetimeError` if there is no such
    expectation, its arguments are invalid, or the table, if its schema is known, has no such column.
    """
    what = f"[tables.{table.name}] expect, number"
    return [_given(f"{what} {n}", given, table.schema) for n, given in enumerate(table.entry.expect, 1)]


def of_each_row(several: "Iterable[gxe.Expectation]") -> "list[gxe.Expectation]":
    """Return those expectations that apply to each row, independent of other rows."""
    about_rows = (kinds.ColumnMapExpectation, kinds.ColumnPairMapExpectation, kinds.MulticolumnMapExpectation)
    about_all = (
        gxe.ExpectColumnValuesToBeUnique,
        gxe.ExpectCompoundColumnsToBeUnique,
        gxe.ExpectColumnValuesToBeIncreasing,
        gxe.ExpectColumnValuesToBeDecreasing,
        gxe.ExpectColumnValueZScoresToBeLessThan,
        gxe.ExpectColumnValuesToNotBeOutliers,
        # Each engine has its own names of types.
        gxe.ExpectColumnValuesToBeOfType,
        gxe.ExpectColumnValuesToBeInTypeList,
    )
    return [
        each
        for each in several
        if isinstance(each, about_rows) and not isinstance(each, about_all) and getattr(each, "mostly", 1) == 1
    ]


def _frame(rows: pa.Table) -> "pd.DataFrame":
    """Return rows for pandas: exact numbers, and each field of a struct by the name that `_names` gives it."""
    import pandas as pd

    columns: dict[str, pa.ChunkedArray] = {}

    def add(field: pa.Field, array: pa.ChunkedArray, name: str) -> None:
        columns[name] = array
        if pa.types.is_struct(field.type):
            for inner in field.type:
                add(inner, pc.struct_field(array, inner.name), f"{name}.{_named(inner.name)}")

    for field in rows.schema:
        add(field, rows[field.name], _named(field.name))
    return pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)


def _given(what: str, given: Mapping[str, Any], schema: TableSchema | None) -> "gxe.Expectation":
    arguments = {name: value for name, value in given.items() if name != "type"}
    try:
        found = configuration.ExpectationConfiguration(type=str(given.get("type")), kwargs=arguments).to_domain_obj()
        if schema is not None:
            _require_columns(schema, arguments)
        return found
    except (exceptions.GreatExpectationsError, ValueError, TypeError) as e:
        raise WritetimeError(f"{what}: {' '.join(str(e).split())}") from None


def _require_columns(schema: TableSchema, arguments: Mapping[str, Any]) -> None:
    """Reject arguments that name a column which the view does not have. A field of a struct follows a dot."""
    named = [arguments[argument] for argument in ("column", "column_A", "column_B") if argument in arguments]
    named += [name for argument in ("column_list", "column_set") for name in arguments.get(argument) or ()]
    columns = list(_names(view_schema(schema)))
    if unknown := [name for name in named if name not in {*columns, PARTITION}]:
        raise ValueError(f"{schema.full_name} has no column {unknown[0]}; it has {', '.join(columns)}")


def _names(fields: Iterable[pa.Field], parent: str = "") -> Iterator[str]:
    """Return the names of columns as Great Expectations writes them on Spark."""
    for field in fields:
        name = parent + _named(field.name)
        yield name
        if pa.types.is_struct(field.type):
            yield from _names(field.type, f"{name}.")


def _named(name: str) -> str:
    return f"`{name}`" if "." in name else name

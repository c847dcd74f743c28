"""The view of a table, with the rows that SELECT * returns, and its proof against the database.

This module has the assets of one table with their checks and metadata. `writetime.lake.views` computes the rows, and
`writetime.verify` compares them.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import dagster as dg
import orjson
from pydantic import Field

from writetime.clients import great_expectations
from writetime.clients.great_expectations import gxe
from writetime.core.counts import pluralize
from writetime.core.errors import Transient
from writetime.delta.parquet import WrittenFile
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import open_table, view_schema
from writetime.verify.compacted_view import CompactedView
from writetime.verify.comparison import VerifyReport, verify
from writetime.view.expected_rows import key_columns, of_each_row, of_entry, remedy_of
from writetime.view.refreshing import refresh
from writetime_dagster.assets import expectations
from writetime_dagster.assets.builders import check_of, table_asset
from writetime_dagster.assets.checks import from_findings, from_unfit, nothing_proven
from writetime_dagster.assets.naming import key_of, view_columns
from writetime_dagster.assets.staging import StagedFiles, Suite
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource

# The number of differing rows that a check shows. `writetime verify` prints all.
_SHOWN = 20


class ViewConfig(dg.Config):
    """How a view is refreshed."""

    whole: bool = Field(default=False, description="Write all rows again, and not only those that changed.")


def build_view_asset(table: FollowedTable) -> dg.AssetsDefinition:
    """Return the compacted view of a table."""
    columns = {} if table.schema is None else view_columns(table.schema, view_schema(table.schema))

    @table_asset(
        table,
        "view",
        after=["state"],
        kinds={"spark", "deltalake"},
        files=("docs/lake.md", "docs/data-types.md"),
        columns=columns,
        blocking={
            "rows_are_those_of_the_state": "Great Expectations on the new rows, before they are published. The rows in "
            "the new files, as Spark reads them, less the rows that they replace, are as many as the state's live rows "
            "at the changed places became more. The view has none of the created rows yet. Keys are present, and each "
            "row occurs once.",
            "rows_are_as_expected": "The expectations of the table's entry, before the new rows are published. If one "
            "fails, the view stays as it was. A refresh of the changed rows checks only those about single rows; "
            "`all_rows_are_as_expected` checks all.",
        },
        checks={
            "timestamps_fit": "Timestamps outside the years -290308 to 294247 are null in the view. Shows, per column, "
            "the number of such rows among those that this refresh wrote. A later refresh passes although they stay; "
            "a run with the option `whole` counts all. Changes and state hold the timestamps.",
        },
        description=f"The rows that SELECT * returns of {table.name}, as a Delta table that any engine reads."
        + (f" {table.entry.description}" if table.entry.description else ""),
    )
    def compacted_view(
        config: ViewConfig, spark: SparkResource, lake: LakeResource
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
        settings = lake.settings
        in_lake = open_table(settings, table.name)
        unfit: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        all_rows = False

        def check(files: Sequence[WrittenFile], *, whole: bool) -> None:
            nonlocal all_rows
            all_rows = whole
            staged(files)

        def expected() -> "list[gxe.Expectation]":
            return of_entry(table) if all_rows else of_each_row(of_entry(table))

        staged = StagedFiles(
            {
                "rows_are_those_of_the_state": Suite(lambda: expectations.of_view(in_lake.schema(), counts, unfit)),
                "rows_are_as_expected": Suite(expected, remedy=remedy_of(table.name)),
            },
            lambda files: expectations.view(spark.spark_session, in_lake, files),
            f"{table.name}: the new rows are not as expected; the view stays as it was",
            keys=key_columns(in_lake.schema()),
            lacking=lambda: expectations.rows_of_view(counts) != 0,
        )
        began = time.monotonic()
        done = yield from staged.during(
            lambda: refresh(settings, in_lake, spark.run, check, unfit, counts=counts, whole=config.whole)
        )
        yield from_unfit("timestamps_fit", unfit, done.written, whole=done.whole)
        files = in_lake.view.load().files
        yield dg.MaterializeResult(
            metadata={
                "dagster/row_count": done.rows,
                "rows_written": done.written,
                "rows_marked": done.marked,
                "files_packed": done.packed,
                "files": len(files),
                "bytes": sum(file.size for file in files),
                "refresh_seconds": round(time.monotonic() - began, 2),
                "path": dg.MetadataValue.path(in_lake.view.storage.address),
            }
        )

    return compacted_view


class VerifyConfig(dg.Config):
    """How long to wait for replication."""

    wait_seconds: float = Field(default=10.0, ge=0, description="For how long differing rows are read again.")


def build_expectations_check(table: FollowedTable) -> dg.AssetChecksDefinition:
    """Return the check of the expectations of the table's entry on all rows of the view."""

    @check_of(
        key_of(table.name, "view"),
        "The expectations of the table's entry on all rows of the view. A refresh checks those about each row before "
        "it publishes them; this check also evaluates those about the whole view, such as its number of rows.",
    )
    def all_rows_are_as_expected(spark: SparkResource, lake: LakeResource) -> dg.AssetCheckResult:
        in_lake, name = open_table(lake.settings, table.name), "all_rows_are_as_expected"
        rows, keys = expectations.whole_view(spark.spark_session, in_lake), key_columns(in_lake.schema())
        return from_findings(name, great_expectations.validate(rows, name, of_entry(table), keys))

    return all_rows_are_as_expected


def build_verify_check(table: FollowedTable) -> dg.AssetChecksDefinition:
    """Return the check of a table's view against the database."""

    @check_of(
        key_of(table.name, "view"),
        "Compares the present rows of the lake and the database, by token range, and the view with the rows of the "
        "lake as of its last refresh. A write that is not captured yet counts as lag and passes, unless capture or "
        "landing has stopped. If the database cannot be reached, or there is no view yet, the check warns that nothing "
        "was verified.",
    )
    def rows_are_those_of_the_database(
        config: VerifyConfig, lake: LakeResource, database: DatabaseResource
    ) -> dg.AssetCheckResult:
        settings, began = lake.settings_with(database), time.monotonic()
        try:
            report = verify(settings, open_table(settings, table.name), config.wait_seconds)
        except Transient as e:
            return nothing_proven(e)
        lagging = [d for d in report.differences if d.lagging]
        view, lacks_view = report.view, "not verified: the compacted view was not refreshed yet"
        return dg.AssetCheckResult(
            passed=report.proven and view is not None,
            severity=dg.AssetCheckSeverity.WARN if report.proven else dg.AssetCheckSeverity.ERROR,
            description=_not_proven(report) if not report.proven else None if view else lacks_view,
            metadata={
                "rows_in_the_database": sum(r.database_rows for r in report.ranges),
                "rows_in_the_lake": sum(r.lake_rows for r in report.ranges),
                "token_ranges": len(report.ranges),
                "rows_differing": report.differing,
                "partitions_not_settled": report.unsettled,
                "rows_lagging": report.lagging,
                "lag_seconds": max((d.written_at - report.newest for d in lagging), default=0) / 1_000_000,
                **(_of_view(view) if view else {}),
                **({"stopped": dg.MetadataValue.json(list(report.stopped))} if report.stopped else {}),
                "verify_seconds": round(time.monotonic() - began, 2),
                "differences": dg.MetadataValue.json(json.loads(orjson.dumps(report.real[:_SHOWN]))),
            },
        )

    return rows_are_those_of_the_database


def _of_view(view: CompactedView) -> dict[str, int | dg.MetadataValue]:
    return {
        "rows_in_the_view": view.rows,
        "view_as_of": dg.MetadataValue.timestamp(view.as_of / 1_000_000),
        "differences_of_the_view": dg.MetadataValue.json(json.loads(orjson.dumps(view.differences))),
    }


def _not_proven(report: VerifyReport) -> str:
    """Return the reasons why a view is not proven."""
    reasons = [pluralize(report.differing, "differing row", ",")] if report.differing else []
    if report.view is not None and report.view.fault is not None:
        reasons.append(f"the compacted view: {report.view.fault}")
    if report.unsettled:
        reasons.append(f"not read again: {pluralize(report.unsettled, 'more partition', ',')}")
    return "; ".join([*reasons, *(f"rows that lag do not reach the lake: {reason}" for reason in report.stopped)])

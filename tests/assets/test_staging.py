"""Files that are validated before the commit that names them."""

from collections.abc import Iterator

from dagster import AssetCheckResult, AssetCheckSpec, MaterializeResult, asset, materialize
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from writetime.clients.great_expectations import gxe
from writetime.delta.parquet import WrittenFile
from writetime_dagster.assets import failures
from writetime_dagster.assets.staging import StagedFiles, Suite


def test_files_that_cannot_be_read_are_validated_again(spark: SparkSession) -> None:
    """An outage is no bad data: the step is tried again, and its check has no result."""
    silent = F.raise_error(F.lit("the store does not answer")).cast("long")
    frames = [spark.range(3).select(silent.alias("id")), spark.range(3)]
    file = WrittenFile("a.parquet", 1, 1, 3, 0, 0)

    @asset(check_specs=[AssetCheckSpec("ids_are_there", asset="ids")])
    def ids() -> Iterator[AssetCheckResult | MaterializeResult]:
        with failures.retry_if_transient(soon_seconds=0):
            staged = StagedFiles(
                {"ids_are_there": Suite(lambda: [gxe.ExpectColumnValuesToNotBeNull(column="id")])},
                lambda _: frames.pop(0),
                "the ids are not as expected",
            )
            yield from staged.during(lambda: staged([file]))
            yield MaterializeResult()

    result = materialize([ids])
    assert len([event for event in result.all_events if event.is_step_up_for_retry]) == 1
    assert [check.passed for check in result.get_asset_check_evaluations()] == [True]

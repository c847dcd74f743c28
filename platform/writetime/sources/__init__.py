"""PySpark Data Sources: `sstable`, `commitlog` and `scylla_cdc`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register all data sources of Writetime with a Spark session: `sstable`, `commitlog` and `scylla_cdc`."""
    from writetime.sources.commitlog import CommitLogSource
    from writetime.sources.scylla_cdc import ScyllaCdcSource
    from writetime.sources.sstable import SSTableSource

    for source in (SSTableSource, CommitLogSource, ScyllaCdcSource):
        spark.dataSource.register(source)

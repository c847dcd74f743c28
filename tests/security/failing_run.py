"""A run of Dagster that fails, in a separate process. `DAGSTER_HOME` and `WRITETIME_CONFIG` name its instance and
settings.
"""

import urllib.request
from contextlib import suppress

import psutil
from dagster import DagsterInstance, materialize

from writetime.core.config import TableEntry
from writetime.lake.followed_tables import FollowedTable
from writetime_dagster.assets import backfill, failures, ingest
from writetime_dagster.resources import DatabaseResource, KafkaResource, LakeResource, SparkResource

ORDERS = FollowedTable("shop.orders", TableEntry(snapshots=["unknown://user:hush-of-a-backup@host/x"]))


def main() -> None:
    """Check the contents of Spark's UI and of the lists of processes, and let a run fail, which is retried once."""
    failures.RETRIES = 1
    spark = SparkResource()
    context = spark.spark_session.sparkContext
    with urllib.request.urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/environment") as page:
        print("the page:", page.read().decode())
    for process in psutil.Process().children(recursive=True):
        # One that has just ended has none.
        with suppress(psutil.Error):
            print("a process:", process.cmdline())
    resources = {
        "spark": spark,
        "kafka": KafkaResource(),
        "lake": LakeResource(),
        "database": DatabaseResource(),
    }
    with DagsterInstance.get() as instance:
        assets = [ingest.user_events, backfill.snapshots(ORDERS), backfill.build_backfill_asset(ORDERS)]
        result = materialize(
            assets, instance=instance, resources=resources, partition_key="tokens-00-of-16", raise_on_error=False
        )
    print("success:", result.success)
    spark.spark_session.stop()


if __name__ == "__main__":
    main()

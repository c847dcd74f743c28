"""The Spark sessions that Writetime works with, and their configuration."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from writetime.config import Settings
from writetime.servers import jars
from writetime.servers.java import spark_java_home


def spark_conf(settings: Settings) -> dict[str, str]:
    """Return the configuration of a session: the settings' master and options over Writetime's own.

    Fetches the pinned jars where the cache lacks them, and points the environment to a Java 17 and this Python.
    """
    os.environ["JAVA_HOME"] = str(spark_java_home(jars.cache_folder().parent / "java"))
    local = settings.spark.master.startswith("local")
    if local:
        # Spark starts `python3` from PATH otherwise, which has none of the packages.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return {
        "spark.master": settings.spark.master,
        "spark.app.name": "writetime",
        "spark.jars": ",".join(map(str, jars.fetch("spark"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        # Delta lists a table's files by a shuffle of 50 tasks otherwise.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(loopback if local else {}),
        **settings.spark.conf,
    }


@contextmanager
def spark_session(settings: Settings) -> Iterator[SparkSession]:
    """Open a session for a `with` block; one that is there already is used and left running."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder = SparkSession.builder
    for name, value in spark_conf(settings).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()

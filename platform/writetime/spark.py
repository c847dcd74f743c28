"""The configuration of the Spark sessions that Writetime works with."""

import os
import sys
from pathlib import Path

from writetime.config import Settings
from writetime.errors import WritetimeError
from writetime.servers import jars
from writetime.servers.java import spark_java_home


def spark_conf(settings: Settings) -> dict[str, str]:
    """Return the configuration of a session: the settings' master and options over Writetime's own.

    Fetches the pinned jars where the cache lacks them, and points the environment to a Java 17 and to the Python of the
    tasks: this one, or on a cluster `spark.pyspark.python`.

    Raises:
        WritetimeError: tasks of a cluster would not find the lake.
    """
    os.environ["JAVA_HOME"] = str(spark_java_home(jars.cache_folder().parent / "java"))
    local = settings.spark.master.startswith("local")
    if local:
        # Spark starts `python3` from PATH otherwise, which has none of the packages.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    elif "://" not in settings.lake.path and not Path(settings.lake.path).is_absolute():
        raise WritetimeError(
            f"lake.path is {settings.lake.path}, below the working folder of this program alone, and the tasks of "
            f"{settings.spark.master} run elsewhere: name an address such as s3://bucket/lake, or the absolute path of "
            "a folder that all machines share"
        )
    elif python := settings.spark.conf.get("spark.pyspark.python"):
        # Only spark-submit reads that option itself.
        os.environ["PYSPARK_PYTHON"] = python
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

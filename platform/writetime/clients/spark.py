"""Writetime's Spark sessions, and their configuration."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.private_folders import private_temporary_folder
from writetime.runtime import jars
from writetime.runtime.java import spark_java_home

# Spark's own pattern, and the keys and signatures of Azure's storage, which that pattern does not cover.
_SECRET = r"(?i)secret|password|token|access[.]?key|account[.]?key|credential|[.]sas[.]"


def start_session(conf: Mapping[str, str]) -> SparkSession:
    """Start a session with this configuration, or return the existing one. With `spark.remote`, it is one of Spark
    Connect.

    Spark's Java process is started without the secrets of the configuration, because pyspark would put them on a
    command line, which every user of the machine can read; the session then passes them through a socket.
    """
    if "spark.remote" not in conf:
        secret = re.compile(_SECRET)
        told = SparkConf(loadDefaults=False).setAll([(k, v) for k, v in conf.items() if not secret.search(k)])
        SparkContext._ensure_initialized(conf=told)
    builder = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def spark_conf(settings: Settings) -> dict[str, str]:
    """Return the configuration of a session: the settings' master and options over Writetime's own.

    It fetches the pinned jars that the cache lacks, and points the environment to a Java 17 and to the Python of the
    tasks: this one, or on a cluster `spark.pyspark.python`. A Connect server has its own of all three, and only the
    options of a session can be set there.

    Raises:
        WritetimeError: tasks of a cluster would not find the lake.
    """
    remote = settings.spark.remote
    local = remote is None and settings.spark.master.startswith("local")
    if not local and "://" not in settings.lake.path and not Path(settings.lake.path).is_absolute():
        raise WritetimeError(
            f"lake.path is {settings.lake.path}, below the working folder of this program alone, and the tasks of "
            f"{settings.spark.master if remote is None else 'spark.remote'} run elsewhere: name an address such as "
            "s3://bucket/lake, or the absolute path of a folder that all machines share"
        )
    of_session = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        # Delta would otherwise list a table's files with a shuffle of 50 tasks.
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    own = {name: value.get_secret_value() for name, value in settings.spark.conf.items()}
    if remote is not None:
        return {"spark.remote": remote.get_secret_value(), **of_session, **own}
    os.environ["JAVA_HOME"] = str(spark_java_home(jars.cache_folder().parent / "java"))
    if local:
        # Spark would otherwise start `python3` from PATH, which has none of the packages.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    elif python := own.get("spark.pyspark.python"):
        # Without spark-submit, Spark does not read that option.
        os.environ["PYSPARK_PYTHON"] = python
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return {
        "spark.master": settings.spark.master,
        "spark.app.name": "writetime",
        "spark.jars": ",".join(map(str, jars.fetch("spark"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **({"spark.local.dir": private_temporary_folder()} if local else {}),
        "spark.ui.enabled": "false",
        "spark.redaction.regex": _SECRET,
        "spark.ui.showConsoleProgress": "false",
        **(loopback if local else {}),
        **of_session,
        **own,
    }


@contextmanager
def spark_session(settings: Settings) -> Iterator[SparkSession]:
    """Open a session for a `with` block; an existing one is used and left running."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    session = start_session(spark_conf(settings))
    try:
        yield session
    finally:
        session.stop()

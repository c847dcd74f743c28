"""A REST catalog of Iceberg: the server that the Iceberg project tests its own clients with, from Maven's jars.

It keeps its tables in SQLite, and reads and writes metadata files on the local disk. Its settings are environment
variables (`org.apache.iceberg.rest.RESTCatalogServer` and `RCKUtils.environmentCatalogConfig` of iceberg-open-api).
"""

import importlib.util
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers import START_SECONDS
from writetime.core.errors import WritetimeError
from writetime.runtime import jars
from writetime.runtime.java import java
from writetime.servers.process import EmbeddedServer, free_port


class RestCatalog(EmbeddedServer):
    """One catalog. Its tables last as long as its folder."""

    name = "rest-catalog"

    def __init__(self, home: Path) -> None:
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        super().__init__(home, {"rest": self._port}, START_SECONDS)

    @property
    def properties(self) -> dict[str, str]:
        """The properties with which pyiceberg reaches it."""
        return {"type": "rest", "uri": self.uri}

    def command(self) -> list[str]:
        """Return the command line."""
        options = {
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_URI": f"jdbc:sqlite:file:{self.folder / 'catalog.db'}",
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
            "CATALOG_WAREHOUSE": (self.folder / "warehouse").as_uri(),
        }
        # Hadoop's file system and the libraries that Iceberg uses are among Spark's jars.
        spark = importlib.util.find_spec("pyspark")
        if spark is None or spark.origin is None:
            raise WritetimeError("pyspark is missing: run `make setup`")
        class_path = [*map(str, jars.fetch("iceberg-rest")), f"{Path(spark.origin).parent / 'jars'}{os.sep}*"]
        variables = [f"{name}={value}" for name, value in options.items()]
        main = "org.apache.iceberg.rest.RESTCatalogServer"
        java_options = ["-XX:+UseSerialGC", "-Xmx128m", "-cp", os.pathsep.join(class_path)]
        return ["env", *variables, str(java()), *java_options, main]

    def fault(self) -> str | None:
        """Return why it does not return its configuration; None if it does."""
        try:
            with urllib.request.urlopen(f"{self.uri}/v1/config", timeout=10):
                return None
        except OSError as e:
            return str(e)


@contextmanager
def running_rest_catalog(home: Path) -> Iterator[RestCatalog]:
    """Run a catalog in a folder."""
    catalog = RestCatalog(home)
    catalog.start()
    try:
        yield catalog
    finally:
        catalog.stop()

"""A standalone Spark cluster of one master and its workers, from the jars of pyspark."""

import importlib.util
from pathlib import Path

from writetime.runtime import jars
from writetime.runtime.java import spark_java_home
from writetime.servers.process import EmbeddedServer, free_port, port_answers


class _Daemon(EmbeddedServer):
    """A program of Spark."""

    def __init__(self, home: Path, name: str, *arguments: str) -> None:
        self.name = name
        self._ui = free_port()
        self._arguments = [*arguments, "--host", "127.0.0.1", "--webui-port", str(self._ui)]
        super().__init__(home, {}, 120)

    def command(self) -> list[str]:
        """Return the command line."""
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        # Spark's launcher and the executors use the Java of this variable.
        java_home = spark_java_home(jars.cache_folder().parent / "java")
        launcher = Path(spec.origin).parent / "bin/spark-class"
        environment = [f"JAVA_HOME={java_home}", f"SPARK_LOG_DIR={self.folder}", "SPARK_DAEMON_MEMORY=256m"]
        return ["env", *environment, str(launcher), *self._arguments]

    def fault(self) -> str | None:
        """Return why its web page is not there; None if it is."""
        return None if port_answers(self._ui) else f"nothing listens at 127.0.0.1:{self._ui}"


class SparkMaster(_Daemon):
    """The master."""

    def __init__(self, home: Path) -> None:
        port = free_port()
        self.address = "127.0.0.1"
        self.url = f"spark://{self.address}:{port}"
        super().__init__(home, "spark-master", "org.apache.spark.deploy.master.Master", "--port", str(port))


class SparkWorker(_Daemon):
    """A worker with one core."""

    def __init__(self, home: Path, number: int, master: SparkMaster) -> None:
        name = f"spark-worker-{number}"
        folder = home / name / "work"
        options = ["--cores", "1", "--memory", "600m", "--work-dir", str(folder)]
        super().__init__(home, name, "org.apache.spark.deploy.worker.Worker", *options, master.url)

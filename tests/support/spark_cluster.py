"""A standalone Spark cluster of one master and its workers, and a server of Spark Connect, from the jars of pyspark."""

import importlib.util
import sys
from pathlib import Path

from writetime.runtime import jars
from writetime.runtime.java import spark_java_home
from writetime.servers.process import EmbeddedServer, free_port, port_answers


class _Program(EmbeddedServer):
    """A program of Spark that listens at a port when it is ready."""

    memory = "256m"

    def __init__(self, home: Path, name: str, port: int, *arguments: str) -> None:
        self.name = name
        self._port = port
        self._arguments = arguments
        super().__init__(home, {}, 120)

    def command(self) -> list[str]:
        """Return the command line."""
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        # Spark's launcher and the executors use the Java of this variable.
        java_home = spark_java_home(jars.cache_folder().parent / "java")
        launcher = Path(spec.origin).parent / "bin/spark-class"
        environment = {
            "JAVA_HOME": java_home,
            "SPARK_LOG_DIR": self.folder,
            "SPARK_DAEMON_MEMORY": self.memory,
            "PYSPARK_PYTHON": sys.executable,
        }
        variables = [f"{name}={value}" for name, value in environment.items()]
        return ["env", *variables, str(launcher), *self._arguments]

    def fault(self) -> str | None:
        """Return why it is not ready; None if it is."""
        return None if port_answers(self._port) else f"nothing listens at 127.0.0.1:{self._port}"


class _Daemon(_Program):
    """A program with a web page."""

    def __init__(self, home: Path, name: str, *arguments: str) -> None:
        port = free_port()
        super().__init__(home, name, port, *arguments, "--host", "127.0.0.1", "--webui-port", str(port))


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


class SparkConnect(_Program):
    """A server of Spark Connect that runs two tasks at once, with this Python."""

    # Those tasks run in its own process.
    memory = "640m"

    def __init__(self, home: Path) -> None:
        port = free_port()
        self.url = f"sc://127.0.0.1:{port}"
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
        }
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        submit = "org.apache.spark.deploy.SparkSubmit"
        super().__init__(home, "spark-connect", port, submit, "--master", "local[2]", *options, *server)

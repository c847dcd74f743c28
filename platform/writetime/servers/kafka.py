"""Apache Kafka in KRaft mode on loopback: one process, broker and controller in one."""

import os
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.runtime import jars
from writetime.runtime.java import java
from writetime.servers.process import EmbeddedServer, java_environment, port_answers, port_of
from writetime.servers.properties import properties_text

_LOG4J = """status: WARN
name: writetime
appenders:
  Console: {name: OUT, target: SYSTEM_OUT, PatternLayout: {pattern: "%d{ISO8601} %-5p %c{1} - %m%n"}}
Loggers:
  Root: {level: WARN, AppenderRef: {ref: OUT}}
"""


class KafkaServer(EmbeddedServer):
    """One broker."""

    name = "kafka"

    def __init__(self, settings: Settings) -> None:
        embedded = settings.embedded
        self._address = settings.kafka.bootstrap_servers
        self._port = port_of(self._address, "kafka.bootstrap_servers")
        ports = {
            "kafka.bootstrap_servers": self._port,
            "embedded.kafka_controller_port": embedded.kafka_controller_port,
        }
        super().__init__(embedded.home, ports, embedded.start_timeout_seconds)
        if "," in str(self.folder):
            raise WritetimeError(
                f"embedded.home: Kafka cannot use the folder {self.folder}, as it takes a comma in a path as the end "
                "of the path; name a folder without commas"
            )
        self._heap = f"{embedded.kafka_heap_mb}m"
        self._controller_port = embedded.kafka_controller_port
        # The id for a new log folder; brokers of one cluster share one.
        self.cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()

    def command(self) -> list[str]:
        """Write `server.properties`, format the log folder once, and return the command line of the broker."""
        config = self.folder / "server.properties"
        config.write_text(properties_text(self.configuration()), "ascii")
        if not (self.folder / "data" / "meta.properties").is_file():
            self._format(config)
        return [*self._java(f"-Xmx{self._heap}", f"-Xms{self._heap}"), "kafka.Kafka", str(config)]

    def fault(self) -> str | None:
        """Return why the broker does not answer a metadata request; None if it does."""
        if not port_answers(self._port):
            return f"nothing listens at 127.0.0.1:{self._port}"
        try:
            client = AdminClient({"bootstrap.servers": f"127.0.0.1:{self._port}", "log_level": 0})
            return None if client.list_topics(timeout=5).brokers else "it lists no broker"
        except KafkaException as e:
            return e.args[0].str()

    def _java(self, *options: str) -> list[str]:
        log4j = self.folder / "log4j2.yaml"
        log4j.write_text(_LOG4J)
        class_path = os.pathsep.join(map(str, jars.fetch("kafka")))
        return [str(java()), "-XX:+UseSerialGC", *options, f"-Dlog4j2.configurationFile={log4j}", "-cp", class_path]

    def _format(self, config: Path) -> None:
        # One in 64 ids begins with a dash, and would be read as an option if it were a separate word.
        format_options = ["format", f"--cluster-id={self.cluster_id}", "-c", str(config)]
        command = [*self._java("-Xmx128m"), "kafka.tools.StorageTool", *format_options]
        answer = subprocess.run(command, env=java_environment(), capture_output=True, text=True, check=False)
        if answer.returncode:
            raise WritetimeError(f"Kafka's log folder {self.folder / 'data'} cannot be made: {answer.stderr.strip()}")

    def configuration(self) -> dict[str, object]:
        """Return the content of `server.properties`."""
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 8,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 8,
            "group.initial.rebalance.delay.ms": 0,
            # An idle controller would otherwise write a record twice per second.
            "metadata.max.idle.interval.ms": 5000,
            "group.min.session.timeout.ms": 1000,
        }

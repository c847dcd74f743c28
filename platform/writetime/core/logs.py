"""Logs of services as JSON lines, and those of the clients of other systems."""

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger and message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


KAFKA_CLIENT = "writetime.clients.kafka.client"
"""The logger of librdkafka."""
ZOOKEEPER_CLIENT = "writetime.clients.zookeeper.client"
"""The logger of kazoo."""


def silence_clients() -> None:
    """Leave out the logs of clients of the database, Kafka and ZooKeeper: they report each attempt to connect, and a
    command shows the error that follows.
    """
    for name in ("cassandra", KAFKA_CLIENT, ZOOKEEPER_CLIENT):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def log_clients() -> None:
    """Include the logs of clients of Kafka and ZooKeeper, as a service does."""
    for name in (KAFKA_CLIENT, ZOOKEEPER_CLIENT):
        logging.getLogger(name).setLevel(logging.NOTSET)


def log_as_json(level: int = logging.INFO) -> None:
    """Send all logs to standard error as JSON lines, those of clients included."""
    log_clients()
    root = logging.getLogger()
    for handler in root.handlers:
        handler.setFormatter(JsonLines())
    logging.getLogger("writetime").setLevel(level)

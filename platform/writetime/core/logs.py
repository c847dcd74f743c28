"""The logs of commands as text, of services as JSON lines, and of the clients of other systems. No line has a password
of an address.
"""

import json
import logging
import sys
import threading
import traceback
from datetime import UTC, datetime

from writetime.core.errors import without_passwords


class TextLines(logging.Formatter):
    """Time, level, logger and message, and the traceback of an error."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text."""
        return without_passwords(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger and message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_passwords(record.getMessage()),
        }
        if record.exc_info:
            line["exception"] = without_passwords(self.formatException(record.exc_info))
        return json.dumps(line)


KAFKA_CLIENT = "writetime.clients.kafka.client"
"""The logger of librdkafka."""
ZOOKEEPER_CLIENT = "writetime.clients.zookeeper.client"
"""The logger of kazoo."""


def hide_passwords_of_bugs() -> None:
    """Let Python show the traceback of a bug, also of a thread, without the passwords of addresses."""

    def show(error: BaseException | None) -> None:
        sys.stderr.write(without_passwords("".join(traceback.format_exception(error))))

    def show_of_thread(found: threading.ExceptHookArgs) -> None:
        # A thread may end so, as Python's own hook has it.
        if found.exc_type is not SystemExit:
            sys.stderr.write(f"Exception in thread {found.thread.name if found.thread else None}:\n")
            show(found.exc_value)

    sys.excepthook = lambda _kind, error, _trace: show(error)
    threading.excepthook = show_of_thread


def silence_clients() -> None:
    """Leave out the logs of clients of the database, Kafka and ZooKeeper. They report each attempt to connect, and a
    command shows the resulting error itself.
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

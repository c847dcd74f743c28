"""Logs of services as JSON lines."""

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


def log_as_json(level: int = logging.INFO) -> None:
    """Send all logs to standard error as JSON lines."""
    root = logging.getLogger()
    for handler in root.handlers:
        handler.setFormatter(JsonLines())
    logging.getLogger("writetime").setLevel(level)

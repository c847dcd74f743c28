"""Writes files of Java's `Properties`, for Kafka and ZooKeeper, and of logback, for Cassandra and ZooKeeper."""

import struct
from collections.abc import Mapping
from pathlib import Path

_LOGBACK = """<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{ISO8601} %-5level %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""


def logback_option(folder: Path) -> str:
    """Write a file of logback into a folder, by which warnings go to standard output. Return Java's option for it."""
    file = folder / "logback.xml"
    file.write_text(_LOGBACK)
    return f"-Dlogback.configurationFile={file}"


def properties_text(entries: Mapping[str, object]) -> str:
    """Return the lines of a properties file, in ASCII. Names are plain words.

    Source: `java.util.Properties.load`, which reads ISO-8859-1, and takes a backslash as the start of an escape.
    """
    return "".join(f"{name}={_escaped(str(value))}\n" for name, value in entries.items())


def _escaped(value: str) -> str:
    text = "".join(c if " " <= c <= "~" else _units(c) for c in value.replace("\\", "\\\\"))
    # Spaces before a value do not belong to it.
    return f"\\{text}" if text.startswith(" ") else text


def _units(character: str) -> str:
    """Return a character as Java writes it: in UTF-16."""
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{unit:04X}" for (unit,) in struct.iter_unpack(">H", data))

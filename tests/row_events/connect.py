"""Kafka Connect and Debezium as the oracle: messages as a sink reads them."""

import base64
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from writetime.runtime import jars
from writetime.runtime.java import java


class Sent(NamedTuple):
    """A message of a topic, and whether it has Connect's schemas."""

    with_schema: bool
    key: bytes
    value: bytes | None


def as_connect_reads(folder: Path, messages: Iterable[Sent], added: Iterable[str]) -> list[dict[str, Any]]:
    """Read messages by Connect's converter and Debezium's transformation; `added` are fields that it adds to rows."""
    (folder / "messages").write_text(
        "".join(f"{str(m.with_schema).lower()} {word(m.key)} {word(m.value)}\n" for m in messages)
    )
    run_java("Connect", ["connect", "kafka"], folder, folder / "messages", folder / "found", ",".join(added))
    return [json.loads(line) for line in (folder / "found").read_bytes().splitlines()]


def run_java(program: str, jar_sets: Iterable[str], folder: Path, *arguments: str | Path) -> None:
    """Compile a program of this folder into another one, and run it."""
    compiler = next(p for p in jars.fetch("cassandra") if "ecj" in p.name)
    path = os.pathsep.join(map(str, jars.fetch(*jar_sets)))
    source = Path(__file__).with_name(f"{program}.java")
    _run(java(), "-jar", compiler, "-11", "-nowarn", "-cp", path, "-d", folder, source)
    _run(java(), "-cp", os.pathsep.join([str(folder), path]), program, *arguments)


def word(data: bytes | None) -> str:
    """Return data as a word of a file of messages."""
    return "-" if data is None else base64.b64encode(data).decode()


def _run(*command: str | Path) -> None:
    answer = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert answer.returncode == 0, (answer.stdout + answer.stderr)[-3000:]

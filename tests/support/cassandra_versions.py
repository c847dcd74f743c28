"""Embedded nodes of another Cassandra, for `pytest --cassandra VERSION`.

4.0 and 4.1 run on Java 17 here, though their makers name Java 8 and 11. Source of the names of settings:
`org.apache.cassandra.config.Config` of 4.0 and 4.1.
"""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from tests.support import oracle
from tests.support.generate import Generator
from writetime.runtime import jars
from writetime.runtime.cassandra_java import module_options
from writetime.runtime.java import java
from writetime.servers.cassandra import CassandraServer

EMBEDDED = "5.0"
"""The version that the product embeds."""
VERSIONS = ("4.0", "4.1", EMBEDDED, "6.0")
_NOT_BEFORE_5 = {"dynamic_data_masking_enabled", "storage_compatibility_mode", "sstable"}
# Names in 4.0, with the unit that their numbers have there.
_NAMES_4_0 = {
    "cdc_total_space": "cdc_total_space_in_mb",
    "column_index_size": "column_index_size_in_kb",
    "commitlog_segment_size": "commitlog_segment_size_in_mb",
    "commitlog_sync_period": "commitlog_sync_period_in_ms",
    "materialized_views_enabled": "enable_materialized_views",
}
# 6.0 keeps its schemas by lightweight transactions, also when it starts, and ends if one takes too long.
_PATIENT_6_0 = {
    "cms_await_timeout": "300s",
    **{f"{name}_timeout": "60s" for name in ("request", "read_request", "write_request", "cas_contention")},
}


def use(version: str, folder: Path) -> None:
    """Let all embedded nodes of this process be of a version, except those with an attribute `is_embedded`, and put its
    `nodetool` on the PATH, for all programs. The oracle reads files by the classes of 5.0, or of the version if it is
    newer.

    Args:
        version: one of `VERSIONS`.
        folder: where `nodetool` is written.
    """
    if version == EMBEDDED:
        return
    if is_older(version):
        Generator.has_vectors = False
    else:
        oracle.use(f"cassandra-{version}", "from_6")
    found = jars.fetch(f"cassandra-{version}")
    class_path = os.pathsep.join(map(str, found))
    # As cassandra-env.sh has it. Without it, this version of the meter cannot measure objects on Java 17.
    meter = next(path for path in found if "jamm" in path.name)
    original: Callable[[CassandraServer], list[str]] = CassandraServer.command

    def command(self: CassandraServer) -> list[str]:
        arguments = original(self)
        if getattr(self, "is_embedded", False):
            return arguments
        file = self.folder / "cassandra.yaml"
        file.write_text(json.dumps(_configuration(json.loads(file.read_text()), version)))
        arguments[arguments.index("-cp") + 1] = class_path
        return [arguments[0], f"-javaagent:{meter}", *arguments[1:]]

    CassandraServer.command = command
    arguments = [str(java()), *module_options(), "-Xmx96m", f"-Duser.home={folder}", "-cp", class_path]
    program = folder / "nodetool"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(arguments)} org.apache.cassandra.tools.NodeTool "$@"\n')
    program.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def is_older(version: str) -> bool:
    """Return whether a version is older than the embedded one."""
    return VERSIONS.index(version) < VERSIONS.index(EMBEDDED)


def _configuration(embedded: dict[str, object], version: str) -> dict[str, object]:
    """Return the same configuration by the names of a version."""
    if not is_older(version):
        return _PATIENT_6_0 | embedded
    known = {name: value for name, value in embedded.items() if name not in _NOT_BEFORE_5}
    if version != "4.0":
        return known
    return {_NAMES_4_0.get(name, name): _number(name, value) for name, value in known.items()}


def _number(name: str, value: object) -> object:
    return int(str(value).rstrip("KMiBms")) if name in _NAMES_4_0 and value is not True else value

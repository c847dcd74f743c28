"""Cassandra's `sstableloader`, which streams SSTables to the nodes that own their rows."""

import json
import os
import subprocess
from pathlib import Path

from writetime.runtime import jars
from writetime.runtime.cassandra_java import module_options
from writetime.runtime.java import java


def stream(folder: Path, node: Path, port: int, version: str) -> None:
    """Stream the SSTables of a folder `KEYSPACE/TABLE` to a node: its folder, its port for clients, its version."""
    class_path = os.pathsep.join(map(str, jars.fetch("cassandra" if version == "5.0" else f"cassandra-{version}")))
    settings = json.loads((node / "cassandra.yaml").read_text())
    program = [str(java()), *module_options(), "-cp", class_path, "org.apache.cassandra.tools.BulkLoader"]
    ports = ["-p", str(port), "-sp", str(settings["storage_port"])]
    options = ["-f", str(node / "cassandra.yaml"), "-d", "127.0.0.1", *ports]
    done = subprocess.run([*program, *options, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]

"""A node of ScyllaDB whose files are on this machine."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from writetime.schema.table import TableSchema


@dataclass(frozen=True)
class Node:
    """`data` is the node's data folder, `nodetool` the command that reaches it, as words."""

    data: Path
    nodetool: list[str]

    def run(self, *arguments: str) -> None:
        """Run a command of nodetool."""
        done = subprocess.run([*self.nodetool, *arguments], capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, f"{' '.join(done.args)}: {done.stdout}{done.stderr}"

    def snapshot(self, schema: TableSchema, tag: str) -> Path:
        """Flush a table and take a snapshot of it; return its folder."""
        assert schema.id is not None
        self.run("flush", schema.keyspace, schema.name)
        self.run("snapshot", "-t", tag, "-cf", schema.name, schema.keyspace)
        folder = self.data / schema.keyspace / f"{schema.name}-{schema.id.hex}" / "snapshots" / tag
        assert folder.is_dir(), f"{folder} is not there: name the data folder of the node that nodetool reaches"
        return folder

"""Trees of backups like those of operators, made from the snapshots of a real server. The paths and manifests are those
of the tools (`writetime.backups.medusa` and `scylla_manager` name the sources).
"""

import gzip
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4


@dataclass(frozen=True)
class Medusa:
    """A place of Cassandra Medusa with one table."""

    place: Path
    table: str
    table_id: UUID
    differential: bool = True

    def backup(self, node: str, name: str, snapshot: Path, cql: str, nodes: Sequence[str], at: int) -> Path:
        """Back a snapshot up, begun at a second and finished a second later; return the manifest."""
        base = self.place / node
        keyspace, _, table = self.table.partition(".")
        columnfamily = f"{table}-{self.table_id.hex}"
        data = (base if self.differential else base / name) / "data" / keyspace / columnfamily
        data.mkdir(parents=True, exist_ok=True)
        index = self.place / "index" / "backup_index" / name
        index.mkdir(parents=True, exist_ok=True)
        (index / f"started_{node}_{at}.timestamp").write_text(str(at))
        meta = base / name / "meta"
        meta.mkdir(parents=True)
        (meta / "schema.cql").write_text(cql)
        (meta / "tokenmap.json").write_text(json.dumps({each: {"tokens": [], "is_up": True} for each in nodes}))
        if self.differential:
            (meta / "differential").write_text("differential")
        objects = []
        for file in sorted(snapshot.iterdir()):
            if file.name in ("manifest.json", "schema.cql"):
                continue
            shutil.copy(file, data)
            md5 = hashlib.md5(file.read_bytes()).hexdigest()
            path = (data / file.name).relative_to(self.place.parent)
            objects.append({"path": str(path), "MD5": md5, "size": file.stat().st_size})
        manifest = meta / "manifest.json"
        of_index = {"keyspace": keyspace, "columnfamily": f"other-{uuid4().hex}", "objects": []}
        section = {"keyspace": keyspace, "columnfamily": columnfamily, "objects": objects}
        manifest.write_text(json.dumps([of_index, section]))
        (index / f"finished_{node}_{at + 1}.timestamp").write_text(str(at + 1))
        return manifest


@dataclass(frozen=True)
class ScyllaManager:
    """A place of Scylla Manager with one table of one cluster."""

    place: Path
    table: str
    table_id: UUID
    cql: str
    cluster: UUID
    task: UUID

    def backup(self, node: UUID, at: datetime, files: Sequence[Path]) -> Path:
        """Back the components of SSTables up; return the manifest."""
        keyspace, _, table = self.table.partition(".")
        tag = f"sm_{at.astimezone(UTC):%Y%m%d%H%M%S}UTC"
        of_node = Path("cluster", str(self.cluster), "dc", "dc1", "node", str(node))
        folder = self.place / "backup" / "sst" / of_node / "keyspace" / keyspace / "table" / table / self.table_id.hex
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            there = folder / file.name
            if there.exists() and there.read_bytes() != file.read_bytes():
                there.rename(f"{there}.{tag}")
            if not there.exists():
                shutil.copy2(file, folder)
        schema = Path("backup", "schema", "cluster", str(self.cluster), f"task_{self.task}_tag_{tag}")
        schema = schema.with_name(f"{schema.name}_schema_with_internals.json.gz")
        rows = [
            {
                "keyspace": "other",
                "type": "table",
                "name": "t",
                "cql_stmt": "CREATE TABLE other.t (id odd PRIMARY KEY);",
            },
            {"keyspace": keyspace, "type": "table", "name": table, "cql_stmt": self.cql},
        ]
        _zip(self.place / schema, rows)
        manifest = self.place / "backup" / "meta" / of_node / f"task_{self.task}_tag_{tag}_manifest.json.gz"
        entry = {
            "keyspace": keyspace,
            "table": table,
            "version": self.table_id.hex,
            "files": [file.name for file in files],
            "size": sum(file.stat().st_size for file in files),
        }
        _zip(manifest, {"version": "v2", "schema": str(schema), "index": [entry], "snapshot_tag": tag})
        return manifest


def _zip(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))

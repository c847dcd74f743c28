"""A Delta table with its Iceberg table, changed at random, and the rows that pyiceberg and delta-rs read of both."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyroaring
from pyiceberg.table import StaticTable

from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.deletion_vectors import read_vector, write_vectors
from writetime.delta.parquet import write_file
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.iceberg.publication import IcebergTable

SECOND = 1_000_000
AS_OF = "view/as_of"
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("pairs", pa.map_(pa.string(), pa.int32())),
        ("parts", pa.list_(pa.field("element", pa.struct([("small", pa.int8()), ("at", pa.timestamp("us", "UTC"))])))),
    ]
)
_PER_FILE = 5


class MirroredTable:
    """A Delta table whose commits add, remove and mark rows, and its Iceberg table."""

    def __init__(self, storage: Storage, seed: int = 0) -> None:
        self.storage = storage
        self.delta = BucketedTable(storage)
        self.delta.create(SCHEMA, 4, {})
        self.iceberg = self.again()
        self.random = random.Random(seed)
        self.commits = 0

    @classmethod
    def at(cls, folder: Path, seed: int = 0) -> "MirroredTable":
        """Create one in a local folder."""
        return cls(Storage(str(folder / "lake" / "shop.items" / "view")), seed)

    def again(self) -> IcebergTable:
        """The Iceberg table as another process opens it."""
        return IcebergTable(BucketedTable(self.storage), AS_OF)

    def commit(self, *, vectors: bool = True, removes: int = 0, **more: Any) -> None:
        """Add a file, mark a row of one or two others, and remove some files, in one commit."""
        before = self.delta.load()
        first = _PER_FILE * self.commits
        new = write_file(self.storage, self.rows(range(first, first + _PER_FILE)), self.random.choice([-1, 0, 3]), None)
        files = list(before.files)
        self.random.shuffle(files)
        removed, others = files[:removes], files[removes:]
        marked = {f.path: read_vector(self.storage, f.vector) | self._mark() for f in others[:2]} if vectors else {}
        marked = {path: rows for path, rows in marked.items() if len(rows) < _PER_FILE}
        marks = [(before.by_path[path], vector) for path, vector in write_vectors(self.storage, marked).items()]
        change = TableChange(removed, [new], marks, vectors=vectors, **more)
        self.commits += 1
        self.delta.commit(before, change, {AS_OF: 10**15 + self.commits * SECOND})

    def _mark(self) -> pyroaring.BitMap:
        return pyroaring.BitMap([self.random.randrange(_PER_FILE)])

    @staticmethod
    def rows(ids: range) -> pa.Table:
        """Rows with these ids."""
        columns = {
            "id": list(ids),
            "text": [f"text {i}" for i in ids],
            "pairs": [[("key", i)] for i in ids],
            "parts": [[{"small": 1, "at": i}] for i in ids],
        }
        return pa.table(columns, schema=SCHEMA)

    def published(self) -> StaticTable:
        """The table as pyiceberg opens it."""
        return published(self.storage.address)

    def ids(self, snapshot: int | None = None) -> list[int]:
        """The ids that pyiceberg reads, of a snapshot or of the newest one."""
        return sorted(self.published().scan(snapshot_id=snapshot).to_arrow()["id"].to_pylist())

    def wanted(self) -> list[int]:
        """The ids that delta-rs reads."""
        return sorted(self.delta.read(["id"])["id"].to_pylist())


def published(address: str) -> StaticTable:
    """Open the newest version of the metadata in a local folder, as its hint names it."""
    folder = Path(address, "metadata")
    number = int((folder / "version-hint.text").read_text())
    return StaticTable.from_metadata(str(folder / f"v{number}.metadata.json"))

"""A table with snapshots of three nights, backups that are made from them, and the commands that load these."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.support.backups import Medusa
from tests.support.lake_answers import view_rows
from writetime.cli.main import main
from writetime.core.config import Settings
from writetime.lake import views
from writetime.lake.backfill import SnapshotFiles, complete_schema, find_snapshots
from writetime.lake.table import open_table
from writetime.schema.table import TableSchema

NODES = ("node-1", "node-2")


@dataclass(frozen=True)
class Nights:
    """A table in the database, its snapshots of three nights, its rows then, and the SSTables that it flushed."""

    settings: Settings
    schema: TableSchema
    cql: str
    snapshots: list[Path]
    rows: list[list[dict[str, Any]]]
    # The microsecond after the last write of each night.
    written_until: list[int]
    flushed: Path

    @property
    def table(self) -> str:
        return self.schema.full_name

    @property
    def folder(self) -> str:
        """The table's folder below a data folder."""
        assert self.schema.id is not None
        return f"{self.schema.keyspace}/{self.schema.name}-{self.schema.id.hex}"


@dataclass(frozen=True)
class Nightly:
    """A place, and a separate lake for its backups."""

    nights: Nights
    settings: Settings
    place: Path

    def backfill(self) -> str:
        """Run the command; return its report."""
        answer = CliRunner(catch_exceptions=False).invoke(main, ["backfill", self.nights.table, str(self.place)])
        assert answer.exit_code == 0, answer.output
        return answer.stderr

    def find(self) -> SnapshotFiles:
        return complete_schema(self.settings, find_snapshots([str(self.place)], table=self.nights.table))

    def refused(self) -> str:
        answer = CliRunner(catch_exceptions=False).invoke(main, ["backfill", self.nights.table, str(self.place)])
        assert answer.exit_code == 1
        return answer.output

    def assert_rows(self, night: int) -> None:
        """The lake answers as the database did in a night."""
        rows = view_rows(views.virtual(open_table(self.settings, self.nights.table)))
        assert rows == self.nights.rows[night]


def tree(nightly: Nightly, node: str, night: int) -> Path:
    """Add a snapshot to the data folder of a node; return its folder."""
    folder = nightly.place / node / "data" / nightly.nights.folder / "snapshots" / f"night{night}"
    return shutil.copytree(nightly.nights.snapshots[night], folder)


def medusa_of(nightly: Nightly, node: str, night: int, at: float) -> Path:
    nights = nightly.nights
    assert nights.schema.id is not None
    medusa = Medusa(nightly.place, nights.table, nights.schema.id)
    return medusa.backup(node, f"n{night}", nights.snapshots[night], nights.cql, NODES, int(at))

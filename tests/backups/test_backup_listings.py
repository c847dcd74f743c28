"""What it costs to look for new backups again and again: requests to the store, counted at its file system."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pyarrow import fs

from writetime.lake.backfill import backup_names
from writetime.storage import folders
from writetime.storage.folders import Seen

NODES = ["node-1", "node-2", "node-3"]


class Counted:
    """A file system that counts the folders and the files that it is asked for."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._disk = fs.LocalFileSystem()

    def get_file_info(self, asked: Any) -> Any:
        """Answer like the disk."""
        kind = "lists" if isinstance(asked, fs.FileSelector) else "files"
        self._counts[kind] += len(asked) if isinstance(asked, list) else 1
        return self._disk.get_file_info(asked)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    found = Counter[str]()
    monkeypatch.setattr(folders, "resolve", lambda path: (cast(fs.FileSystem, Counted(found)), path))
    return found


def back_up(place: Path, backup: str, second: int = 0) -> None:
    """Make a complete backup of Medusa. Its index has its times, or nothing has them."""
    for node in NODES:
        meta = place / node / backup / "meta"
        meta.mkdir(parents=True)
        (meta / "manifest.json").write_text(json.dumps([]))
        if second:
            index = place / "index" / "backup_index" / backup
            index.mkdir(parents=True, exist_ok=True)
            for kind in ("started", "finished"):
                (index / f"{kind}_{node}_{second}.timestamp").touch()


def look(place: Path, tables: Sequence[str], seen: Seen) -> list[list[str]]:
    """The names of the backups of some tables, in one look."""
    seen.look_again()
    return [backup_names([str(place)], table, seen) for table in tables]


def test_a_look_costs_the_same_after_many_backups(tmp_path: Path, counts: Counter[str]) -> None:
    """And for many tables."""
    costs: list[tuple[dict[str, int], dict[str, int]]] = []
    for name, backups, tables in (("few", 2, 1), ("many", 30, 40)):
        place = tmp_path / name
        wanted = [f"shop.t{i}" for i in range(tables)]
        for n in range(backups):
            back_up(place, f"night-{n:02d}", n + 1)
        seen = Seen()
        before = look(place, wanted, seen)
        counts.clear()
        assert look(place, wanted, seen) == before
        idle = dict(counts)
        back_up(place, "next", 100)
        counts.clear()
        assert look(place, wanted, seen) == [[f"{node}/next/meta/manifest.json" for node in NODES]] * tables
        costs.append((idle, dict(counts)))
    assert costs[0] == costs[1]
    idle, new = costs[0]
    # The new backup of each node is one more file, and its entries in the index are in one folder.
    assert new == {**idle, "files": idle["files"] + len(NODES), "lists": idle["lists"] + 1}


def test_a_backup_that_is_not_complete_is_looked_for_again(tmp_path: Path, counts: Counter[str]) -> None:
    back_up(tmp_path, "night-0")
    begun = tmp_path / "node-1" / "night-1" / "meta"
    begun.mkdir(parents=True)
    seen = Seen()
    [before] = look(tmp_path, ["shop.items"], seen)
    assert look(tmp_path, ["shop.items"], seen) == [before]
    (begun / "manifest.json").write_text("[]")
    [after] = look(tmp_path, ["shop.items"], seen)
    assert set(after) - set(before) == {"node-1/night-1/meta/manifest.json"}
    assert after == backup_names([str(tmp_path)], "shop.items")
    assert counts["lists"] > 0
    # Purged.
    (begun / "manifest.json").unlink()
    begun.rmdir()
    begun.parent.rmdir()
    assert look(tmp_path, ["shop.items"], seen) == [before]

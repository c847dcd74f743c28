"""Snapshots that fail: the node keeps no part of them. nodetool is a stub that creates and deletes folders."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from writetime.clients import node_snapshots
from writetime.clients.node_snapshots import take
from writetime.core.errors import WritetimeError

IDS = {"shop.orders": UUID(int=1), "shop.items": UUID(int=2)}


class Node:
    """A node with two tables and one data folder. `fails` runs after a snapshot was taken."""

    def __init__(self, folder: Path) -> None:
        self.tables = {table: folder / "shop" / f"{table[5:]}-{i.hex}" for table, i in IDS.items()}
        for table_folder in self.tables.values():
            table_folder.mkdir(parents=True)
        self.calls: list[str] = []
        self.fails: Callable[[], None] = lambda: None

    def nodetool(self, port: int, *arguments: str) -> None:
        assert port == 7199
        self.calls.append(arguments[0])
        snapshots = [table_folder / "snapshots" / arguments[2] for table_folder in self.tables.values()]
        if arguments[0] == "clearsnapshot":
            for snapshot in snapshots:
                shutil.rmtree(snapshot, ignore_errors=True)
            return
        for table in arguments[4].split(","):
            (self.tables[table] / "snapshots" / arguments[2]).mkdir(parents=True)
        self.fails()

    def snapshots(self) -> list[str]:
        return sorted(path.parent.parent.name[:5] for t in self.tables.values() for path in t.glob("snapshots/*"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(node_snapshots, "nodetool", made.nodetool)
    return made


@pytest.mark.parametrize("error", [WritetimeError("nodetool snapshot did not end"), KeyboardInterrupt(), OSError()])
def test_a_snapshot_that_fails_is_deleted(node: Node, tmp_path: Path, error: BaseException) -> None:
    def fail() -> None:
        raise error

    node.fails = fail
    with pytest.raises(type(error)):
        take([str(tmp_path)], 7199, IDS, "night")
    assert node.calls == ["snapshot", "clearsnapshot"]
    assert node.snapshots() == []


def test_a_snapshot_that_is_not_found_is_deleted(node: Node, tmp_path: Path) -> None:
    node.fails = lambda: shutil.rmtree(node.tables["shop.orders"])
    with pytest.raises(WritetimeError, match=r"the snapshot night of shop\.orders cannot be read: .*snapshots/night"):
        take([str(tmp_path)], 7199, IDS, "night")
    assert node.snapshots() == []


def test_no_snapshot_is_taken_without_the_data_folders(node: Node, tmp_path: Path) -> None:
    with pytest.raises(WritetimeError, match=r"as a user who may read its data folders"):
        take([str(tmp_path / "elsewhere")], 7199, IDS, "night", patience=0)
    assert node.calls == []


def test_the_folder_of_a_new_table_is_waited_for(node: Node, tmp_path: Path) -> None:
    """The node shows the schema of a table before it creates the folder."""
    folder = node.tables["shop.items"]
    folder.rmdir()
    later = threading.Timer(0.2, folder.mkdir)
    later.start()
    assert take([str(tmp_path)], 7199, IDS, "night").keys() == IDS.keys()
    later.join()


def test_an_earlier_snapshot_of_the_same_name_stays(node: Node, tmp_path: Path) -> None:
    take([str(tmp_path)], 7199, {"shop.items": IDS["shop.items"]}, "night")
    node.fails = lambda: shutil.rmtree(node.tables["shop.orders"])
    with pytest.raises(WritetimeError):
        take([str(tmp_path)], 7199, {"shop.orders": IDS["shop.orders"]}, "night")
    assert node.snapshots() == ["items"]


def test_a_folder_that_cannot_be_read_is_named(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its rows would be missing, and the snapshot would count as complete."""
    hidden = node.tables["shop.items"] / "snapshots" / "night"
    for folder in ("d1", "d2"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr("os.access", lambda path, _: path != hidden)
    with pytest.raises(WritetimeError, match=rf"{hidden} is not readable"):
        take([str(tmp_path / "d1"), str(tmp_path), str(tmp_path / "d2")], 7199, IDS, "night")
    assert node.snapshots() == []

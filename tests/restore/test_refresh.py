"""SSTables of a restore are loaded by a node of ScyllaDB: its folder `upload`, and its REST interface. The node is a
stand-in that checks and deletes files; tests/scylla/test_restore.py loads into a real one.
"""

import fcntl
import http.server
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.made import SCHEMA, add, new_table, write
from tests.support.waiting import PATIENCE_SECONDS
from writetime.bulk_load import copies, node_import
from writetime.bulk_load.node_import import import_node, is_imported
from writetime.bulk_load.sstables import RestoreManifest, Target, TargetNode, write_sstables
from writetime.clients import scylla_node as clients
from writetime.core.errors import Transient, WritetimeError
from writetime.files.key_ranges import TokenRange
from writetime.lake.views import bucket_views

HOST, TABLE, TABLE_ID = "a-host", "shop.items", "6e2b2f10-0000-1000-8000-00000000abcd"
NODES = {HOST: TargetNode("10.0.0.1", (TokenRange(-(1 << 63), (1 << 63) - 1),))}
LISTED = {"Data.db", "Index.db", "Scylla.db", "Statistics.db", "TOC.txt"}


class Node:
    """What a node does with SSTables, and what it was asked for."""

    def __init__(self, data: Path) -> None:
        self.upload = data / "shop" / f"items-{TABLE_ID.replace('-', '')}" / "upload"
        self.upload.mkdir(parents=True)
        self.asked: list[str] = []
        self.loaded: list[str] = []
        self.answers: list[Callable[[], str | None]] = []
        self.session: Any = None

    def load(self) -> str | None:
        """Load what is there, or return an error."""
        if self.answers and (error := self.answers.pop(0)()) is not None:
            return error
        for toc in self.upload.glob("*-TOC.txt"):
            names = toc.read_text().split()
            assert set(names) >= LISTED
            for name in names:
                toc.with_name(toc.name.replace("TOC.txt", name)).unlink()
            self.loaded.append(toc.name)
        return None


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path / "data")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.asked.append(self.path)
            error = made.load()
            self.send_response(200 if error is None else 500)
            self.end_headers()
            self.wfile.write(json.dumps({"message": error, "code": 500}).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    settings = {
        "data_file_directories": [str(tmp_path / "missing"), str(tmp_path / "data")],
        "api_address": "",
        "api_port": server.server_port,
        "rpc_address": "0.0.0.0",
    }
    rows = [SimpleNamespace(name=name, value=json.dumps(value)) for name, value in settings.items()]
    made.session = SimpleNamespace(execute=lambda *_, **__: rows)
    monkeypatch.setattr(clients, "node_of", lambda *_: None)
    monkeypatch.setattr(node_import, "require_empty", lambda *_: None)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def manifest(tmp_path: Path) -> RestoreManifest:
    """SSTables for the node, in `out`."""
    table = new_table(tmp_path / "lake")
    add(table, [write(i, 0, i, v="v") for i in range(100)], 0)
    empty = RestoreManifest(table.name, None, 0, "me", "", Target(TABLE, TABLE_ID, False, NODES))
    return write_sstables(bucket_views(table), SCHEMA, str(tmp_path / "out"), empty)


def load(node: Node, folder: Path, manifest: RestoreManifest) -> int:
    return import_node(node.session, str(folder), manifest, HOST)


def test_all_sstables_are_loaded(node: Node, tmp_path: Path, manifest: RestoreManifest) -> None:
    kept = {path.name: path.read_bytes() for path in (tmp_path / "out" / HOST).iterdir()}
    assert load(node, tmp_path / "out", manifest) == 4
    assert node.asked == ["/storage_service/sstables/shop?cf=items&load_and_stream=true"]
    assert len(node.loaded) == 4
    assert {path.name: path.read_bytes() for path in (tmp_path / "out" / HOST).iterdir()} == kept
    assert manifest.target is not None
    assert is_imported(str(tmp_path / "out"), manifest, HOST)


def test_a_node_that_loads_others_is_waited_for(node: Node, tmp_path: Path, manifest: RestoreManifest) -> None:
    busy = "Failed to load new sstables: std::runtime_error (Already loading SSTables. Try again later)"
    node.answers = [lambda: busy]
    load(node, tmp_path / "out", manifest)
    assert (len(node.asked), len(node.loaded)) == (2, 4)


def test_an_error_of_the_node(node: Node, tmp_path: Path, manifest: RestoreManifest) -> None:
    """Its SSTables do not stay: another load of the table would load them, too, or fail."""
    node.answers = [lambda: "Failed to load new sstables: no replica"]
    with pytest.raises(WritetimeError, match=r"does not load the SSTables of shop.items: .*no replica.*; see its log"):
        load(node, tmp_path / "out", manifest)
    assert not list(node.upload.iterdir())
    assert manifest.target is not None
    assert not is_imported(str(tmp_path / "out"), manifest, HOST)
    load(node, tmp_path / "out", manifest)
    assert len(node.loaded) == 4


def test_files_that_the_node_leaves_are_an_error(
    node: Node, tmp_path: Path, manifest: RestoreManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "load", lambda: None)
    with pytest.raises(WritetimeError, match=rf"the node at 127.0.0.1:\d+ left {node.upload}/me-\d+-big-Data.db: see"):
        load(node, tmp_path / "out", manifest)


def test_a_run_that_was_killed_while_it_copied(
    node: Node, tmp_path: Path, manifest: RestoreManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each file: an SSTable counts from its list of components on, so all others must be there by then."""
    genuine = copies._copy
    left = 0

    def copy(*arguments: Any) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        genuine(*arguments)

    for count in range(len(list((tmp_path / "out" / HOST).iterdir()))):
        left = count
        with monkeypatch.context() as patch:
            patch.setattr(copies, "_copy", copy)
            # A process that is killed removes nothing.
            patch.setattr(node_import, "remove_copies", lambda *_: None)
            shutil.rmtree(node.upload)
            node.upload.mkdir()
            with pytest.raises(KeyboardInterrupt):
                load(node, tmp_path / "out", manifest)
        assert node.load() is None
    node.loaded.clear()
    assert load(node, tmp_path / "out", manifest) == len(node.loaded) == 4


def test_two_programs_load_the_same_sstables(
    node: Node, tmp_path: Path, manifest: RestoreManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes when the first one has copied them, and the node has not loaded them."""
    second = threading.Thread(target=lambda: load(node, tmp_path / "out", manifest))
    came, first_ended = threading.Event(), threading.Event()
    flock, remove = fcntl.flock, node_import.remove_copies

    def lock(*arguments: Any) -> None:
        if threading.current_thread() is second:
            came.set()
        flock(*arguments)

    def removed(*arguments: Any) -> None:
        remove(*arguments)
        if threading.current_thread() is second:
            came.set()
            assert first_ended.wait(PATIENCE_SECONDS)

    def begin_second() -> None:
        second.start()
        assert came.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(node_import, "remove_copies", removed)
    node.answers = [begin_second]
    try:
        load(node, tmp_path / "out", manifest)
        assert len(node.loaded) == 4
    finally:
        first_ended.set()
        second.join()
    assert is_imported(str(tmp_path / "out"), manifest, HOST)


def test_another_machine_and_another_user(
    node: Node, tmp_path: Path, manifest: RestoreManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4321)
        with pytest.raises(WritetimeError, match=r"the node 10.0.0.1 runs as another user: run `writetime import"):
            load(node, tmp_path / "out", manifest)
    shutil.rmtree(node.upload)
    with pytest.raises(WritetimeError, match=r"the node 10.0.0.1 is not on this machine: run `writetime import .*out`"):
        load(node, tmp_path / "out", manifest)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_root_gives_the_files_to_the_node(node: Node, tmp_path: Path, manifest: RestoreManifest) -> None:
    """ScyllaDB refuses files of another user."""
    os.chown(node.upload, 1234, 1234)
    owners = set()

    def look() -> None:
        owners.update((path.stat().st_uid, path.stat().st_gid) for path in node.upload.iterdir())

    node.answers = [look]
    load(node, tmp_path / "out", manifest)
    assert owners == {(1234, 1234)}
    assert {path.stat().st_uid for path in (tmp_path / "out" / HOST).iterdir()} == {0}


def test_an_interface_that_does_not_answer(node: Node, tmp_path: Path, manifest: RestoreManifest) -> None:
    with pytest.raises(Transient, match=r"the REST interface of the node does not answer at \[::1\]:1 .*: run this"):
        clients.load_and_stream(clients.ScyllaNode([], "[::1]:1"), TABLE, 1)

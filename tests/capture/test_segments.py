"""The end of segments: they are released, archived or kept; and segments that are faulty, unknown or vanished."""

import itertools
import json
import logging
import os
import re
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from pyarrow.fs import LocalFileSystem

from tests.capture.agents import complete, node_id, progress_of, put_back
from tests.support.captured import Captured
from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.capture.commitlog_agent import run
from writetime.capture.decoding import unbalanced
from writetime.capture.metrics import read_status, summary
from writetime.capture.progress import AgentProgress, SegmentProgress
from writetime.capture.segments import SegmentFolder
from writetime.capture.state_files import copy_file
from writetime.cli.main import main
from writetime.clients.kafka import client_config, ensure_topics
from writetime.core.config import Capture, Settings
from writetime.core.errors import WritetimeError
from writetime.servers.process import free_port
from writetime.storage.segment import Segment, find_segments
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import statuses


def test_published_segments_are_archived_or_deleted_or_kept(
    captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive"
    captured.fill(3)
    before = complete(captured)
    assert len(before) >= 2
    with captured.agent(finished="keep", state_dir=tmp_path / "first"):
        captured.settle()
        wait_for(lambda: json.loads((tmp_path / "first/progress.json").read_text())["segments"])
        assert_rounds_read_no_index_of({path.name for path in before}, monkeypatch)
    assert all(path.exists() for path in before)
    contents = {path.name: path.read_bytes() for path in before}
    with captured.agent(finished="archive", archive=f"file://{archive}"):
        wait_for(lambda: not any(path.exists() for path in before))
    for name, content in contents.items():
        assert (archive / name).read_bytes() == content
        assert (archive / name.replace(".log", "_cdc.idx")).read_text().endswith("COMPLETED")
    assert not list(archive.glob("*.part"))
    captured.fill(2)
    with captured.agent():
        captured.settle()
        wait_for(lambda: not complete(captured))
    totals = progress_of(captured)["totals"]
    assert totals["segments"] >= len(before) + 1
    assert totals["segments_set_aside"] == totals["segments_vanished"] == totals["mutations_set_aside"] == 0
    assert 0 < totals["changes"] <= totals["mutations"]
    captured.assert_same("marks")


def assert_rounds_read_no_index_of(kept: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they are done. Rounds read the indexes of other segments."""
    names: set[str] = set()
    read = Segment.cdc_index

    def noted(segment: Segment) -> Any:
        names.add(segment.name)
        return read(segment)

    def is_idle() -> bool:
        names.clear()
        time.sleep(0.5)
        return bool(names) and not names & kept

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "cdc_index", noted)
        wait_for(is_idle)


def test_an_archive_that_does_not_answer_is_called_once_per_pause(
    captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each segment that waits; and one segment with a fault holds up no other."""
    captured.fill(4)
    waiting = complete(captured)
    assert len(waiting) >= 3
    asked: list[float] = []
    refused = {path.name for path in waiting}
    release = SegmentFolder.release

    def archive(folder: SegmentFolder, segment: Segment) -> bool:
        if segment.name not in refused:
            return release(folder, segment)
        asked.append(time.monotonic())
        raise OSError("AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(SegmentFolder, "release", archive)
    captured.pace = replace(captured.pace, pause=0.2)
    with captured.agent(finished="archive", archive=f"file://{tmp_path / 'archive'}"):
        wait_for(lambda: len(asked) >= 4)
        pauses = [later - earlier for earlier, later in itertools.pairwise(asked[:4])]
        assert all(pause >= least for pause, least in zip(pauses, (0.2, 0.4, 0.8), strict=True))
        refused -= {path.name for path in waiting[1:]}
        wait_for(lambda: not any(path.exists() for path in waiting[1:]))
        assert waiting[0].exists()
        refused.clear()
        wait_for(lambda: not waiting[0].exists())


def test_the_status_of_an_agent(
    captured: Captured, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its metrics, in Kafka (where `status --agents` reads it), in the log, and by the command."""
    caplog.set_level(logging.INFO, "writetime")
    table = f"{captured.keyspace}.marks"
    port = free_port()
    with captured.agent(metrics_port=port, backlog_warning=1e-9):
        captured.settle()
        wait_for((captured.settings.capture.state_dir / "status.json").exists)
        assert_another_agent_is_refused(captured, tmp_path)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
        # The status is written again.
        time.sleep(1.5 * captured.pace.status)
        captured.settle()
        node = node_id(captured)
        wait_for(lambda: table in statuses(captured.watermarks.read()).get(node, {}).get("changes", {}))
    said = statuses(captured.watermarks.read())[node]
    assert f'writetime_capture_changes_total{{kind="row",table="{table}"}}' in metrics
    for name in said["lag"]:
        assert f"writetime_capture_{name} " in metrics
    for name in ("segments", "segments_set_aside", "segments_vanished", "mutations_set_aside", "changes_set_aside"):
        assert f"writetime_capture_{name}_total {float(said['totals'][name])}" in metrics
    numbers = summary([said])
    assert (numbers["agents"], numbers["agents_held"], numbers["aside_segments"]) == (1, 0, 0)
    assert numbers["backlog_bytes"] == said["lag"]["backlog_bytes"] > 0
    assert 0 < numbers["backlog_share"] < 1
    assert any("of the node's cdc_total_space" in r.getMessage() for r in caplog.records)
    write_settings(captured.settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    assert_shown_by_the_command(table, node)


def assert_another_agent_is_refused(captured: Captured, tmp_path: Path) -> None:
    with pytest.raises(WritetimeError, match="another agent"):
        AgentProgress(captured.settings.capture.state_dir)
    # With another state folder, it would delete the segments that the first one reads.
    with pytest.raises(WritetimeError, match="another agent publishes and deletes the segments in"):
        run(captured.with_options(state_dir=tmp_path / "other", metrics_port=None), threading.Event())


def assert_shown_by_the_command(table: str, node: str) -> None:
    shown = CliRunner().invoke(main, ["status"]).output
    assert f"{table}: " in shown
    assert "of cdc_total_space" in shown
    shown = CliRunner().invoke(main, ["status", "--agents"], catch_exceptions=False).output
    assert f"agent of {node} " in shown
    assert "127.0.0.1" in shown
    assert f"{table}: " in shown


def test_a_broken_segment_is_set_aside_and_stops_nothing(captured: Captured) -> None:
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY, v blob) WITH cdc = true")
    insert = captured.node.session().prepare(f"INSERT INTO {captured.keyspace}.t (k, v) VALUES (?, ?)")
    for k in range(60):
        captured.node.session().execute(insert, (k, os.urandom(100_000)))
    *_, path = complete(captured)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    # A separate file, because the node still has the valid one.
    copy = path.with_suffix(".broken")
    copy.write_bytes(content)
    copy.replace(path)
    with captured.agent():
        captured.settle()
        wait_for(lambda: not path.exists())
    aside = captured.settings.capture.state_dir / "aside"
    assert (aside / path.name).read_bytes() == content
    reason = json.loads((aside / path.with_suffix(".reason.json").name).read_text())
    assert path.name in reason["reason"]
    assert progress_of(captured)["totals"]["segments_set_aside"] == 1
    found = set(captured.changes("t")["k"].to_pylist())
    missing = set(range(60)) - found
    assert 0 < len(missing) < 12
    assert reason["mutations_read"] > 0
    # Put back as it was, it is read like any other.
    path.with_name(path.stem + "_cdc.idx").write_text((aside / f"{path.stem}_cdc.idx").read_text())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with captured.agent():
        captured.settle()
        wait_for(lambda: not path.exists())
    captured.assert_same("t")


def test_a_change_that_is_too_large_does_not_stop_the_others(captured: Captured) -> None:
    topic = changes_topic(f"{captured.keyspace}.t")
    ensure_topics(captured.settings, {topic: {"max.message.bytes": "150000"}}, 4)
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY, v blob) WITH cdc = true")
    insert = captured.node.session().prepare(f"INSERT INTO {captured.keyspace}.t (k, v) VALUES (?, ?)")
    sizes = {1: 100, 2: 200_000, 3: 140_000, 4: 148_000, 5: 100}
    for k, size in sizes.items():
        captured.node.session().execute(insert, (k, os.urandom(size)))
    captured.fill(2)
    aside = captured.settings.capture.state_dir / "aside"
    port = free_port()
    with captured.agent(metrics_port=port):
        captured.settle()
        wait_for(lambda: progress_of(captured)["totals"]["changes_set_aside"] == 1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
        (file,) = aside.glob("*.reason.json")
        found = json.loads(file.read_text())
        assert re.search(
            rf"a change has 200\d+ bytes, and the topic {topic} allows 150000 per message", found["reason"]
        )
        assert found["changes_set_aside"] == 1
        assert f'writetime_capture_changes_refused_total{{table="{captured.keyspace}.t"}} 1.0' in metrics
        assert sorted(set(captured.changes("t")["k"].to_pylist())) == [1, 3, 4, 5]
        # Once the topic takes it, the segment is put back.
        change = ConfigResource(ConfigResource.Type.TOPIC, topic)
        larger = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
        change.add_incremental_config(larger)
        admin = AdminClient(client_config(captured.settings))
        for future in admin.incremental_alter_configs([change]).values():
            future.result(15)
        put_back(captured, aside)
        wait_for(lambda: not file.exists())
    captured.assert_same("t", "marks")


def test_an_invalid_index_does_not_stop_other_segments(
    captured: Captured, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    segment = captured.node.cdc_raw / "CommitLog-8-1.log"
    index = segment.with_name("CommitLog-8-1_cdc.idx")
    segment.write_bytes(b"")
    # As of a segment that the node still has.
    held = tmp_path / segment.name
    held.hardlink_to(segment)
    index.write_text("no offset")
    state = captured.settings.capture.state_dir
    try:
        with captured.agent():
            captured.settle()
            # It is behind, as long as it is there.
            wait_for(lambda: (read_status(state) or {"lag": {"lag_segments": 0}})["lag"]["lag_segments"])
    finally:
        segment.unlink()
        index.unlink()
    assert "CommitLog-8-1_cdc.idx, offset 0: an offset was expected, and optionally COMPLETED" in caplog.text


def test_writes_to_an_unknown_table_are_set_aside(captured: Captured) -> None:
    captured.write(
        "CREATE TABLE {ks}.kept (k int PRIMARY KEY) WITH cdc = true",
        "CREATE TABLE {ks}.gone (k int PRIMARY KEY) WITH cdc = true",
        "CREATE MATERIALIZED VIEW {ks}.seen AS SELECT id FROM {ks}.marks WHERE id IS NOT NULL PRIMARY KEY (id)",
        "INSERT INTO {ks}.kept (k) VALUES (1)",
        "INSERT INTO {ks}.gone (k) VALUES (1)",
        "BEGIN BATCH INSERT INTO {ks}.gone (k) VALUES (2); INSERT INTO {ks}.kept (k) VALUES (2); APPLY BATCH",
    )
    table = captured.schema("gone").id
    captured.write("DROP TABLE {ks}.gone", "INSERT INTO {ks}.kept (k) VALUES (3)")
    with captured.agent():
        captured.settle()
        captured.fill(2)
        captured.settle()
        aside = captured.settings.capture.state_dir / "aside"
        wait_for(lambda: list(aside.glob("*.reason.json")))
        wait_for(lambda: progress_of(captured)["totals"]["mutations_set_aside"])
    (file,) = aside.glob("*.reason.json")
    reason = json.loads(file.read_text())
    assert str(table) in reason["reason"]
    # A batch of one key is one mutation: its parts after the unknown table are in the segment that was set aside.
    assert reason["mutations_set_aside_by_table"] == {str(table): 2}
    # The parts before it, in the order of the tables' ids, are published.
    assert sorted(set(captured.changes("kept")["k"].to_pylist()) - {2}) == [1, 3]


def test_a_segment_that_vanished_is_reported(captured: Captured, caplog: pytest.LogCaptureFixture) -> None:
    with captured.agent():
        captured.settle()
    captured.fill(2)
    (current,) = progress_of(captured)["segments"].values()
    path = captured.node.cdc_raw / current["name"]
    path.unlink()
    with captured.agent():
        captured.settle()
        wait_for(lambda: progress_of(captured)["totals"]["segments_vanished"] == 1)
    assert any(f"{path.name} vanished" in record.getMessage() for record in caplog.records)
    assert not path.with_name(path.stem + "_cdc.idx").exists()


def test_a_segment_that_is_deleted_after_it_was_read_is_no_gap(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By another program, between the listing and the release. All of its changes are published."""
    gone: list[str] = []

    def deleted_first(segment: Segment, progress: SegmentProgress) -> str | None:
        Path(segment.path).unlink()
        gone.append(segment.name)
        return unbalanced(segment, progress)

    monkeypatch.setattr("writetime.capture.segment_releases.unbalanced", deleted_first)
    captured.fill(2)
    with captured.agent():
        captured.settle()
        wait_for(lambda: gone and progress_of(captured)["totals"]["segments"] == len(gone))
    totals = progress_of(captured)["totals"]
    assert totals["segments_set_aside"] == totals["segments_vanished"] == totals["changes_set_aside"] == 0
    assert not list((captured.settings.capture.state_dir / "aside").glob("*"))
    assert f"{gone[0]} was deleted after it was read to its end" in caplog.text
    assert not (captured.node.cdc_raw / gone[0].replace(".log", "_cdc.idx")).exists()
    captured.assert_same("marks")
    # A change that was decoded and not published is missing all the same.
    segment = Segment(LocalFileSystem(), str(captured.node.cdc_raw / gone[0]), 7, 1)
    assert "of 2 changes that were decoded, 1 were published" in str(
        unbalanced(segment, SegmentProgress(gone[0], mutations=1, decoded=2, published=1, finished=True))
    )


def recorded(patch: pytest.MonkeyPatch) -> list[str]:
    """The calls that sync, rename and delete files from now on."""
    calls: list[str] = []
    fsync, replace, unlink = os.fsync, Path.replace, Path.unlink

    def sync(handle: int) -> None:
        fsync(handle)
        calls.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")

    def rename(path: Path, new: Path) -> Path:
        calls.append(f"rename {path.name}")
        return replace(path, new)

    def delete(path: Path, missing_ok: bool = False) -> None:
        calls.append(f"delete {path.name}")
        unlink(path, missing_ok)

    patch.setattr(os, "fsync", sync)
    patch.setattr(Path, "replace", rename)
    patch.setattr(Path, "unlink", delete)
    return calls


@pytest.mark.parametrize("copy", ["set_aside", "release"])
def test_a_copy_is_on_the_disk_before_its_original_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: str
) -> None:
    """Or both would be lost if the power fails then."""
    raw, target = tmp_path / "raw", tmp_path / "target"
    for folder in (raw, target):
        folder.mkdir()
    (raw / "CommitLog-8-1.log").write_bytes(b"changes")
    (raw / "CommitLog-8-1_cdc.idx").write_text("7\nCOMPLETED")
    archive = {"finished": "archive", "archive": str(target)}
    capture = Capture.model_validate({"state_dir": tmp_path, "aside": target, "cdc_raw": raw, **archive})
    folder = SegmentFolder(Settings(capture=capture), None)
    [segment] = find_segments(str(raw))
    with monkeypatch.context() as patch:
        calls = recorded(patch)
        if copy == "release":
            assert folder.release(segment)
        else:
            folder.set_aside(segment, SegmentProgress(segment.name, reason="a fault"), 0)
    folder.close()
    for name in ("CommitLog-8-1.log", "CommitLog-8-1_cdc.idx"):
        wanted = [f"sync {name}.part", f"rename {name}.part", "sync target", f"delete {name}"]
        begin = calls.index(wanted[0])
        places = [calls.index(call, begin) for call in wanted]
        assert places == sorted(places)
    assert not list(raw.iterdir())
    assert (target / "CommitLog-8-1.log").read_bytes() == b"changes"


def test_a_copy_of_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "segment").symlink_to("/dev/zero")
    with pytest.raises(WritetimeError, match="is a symbolic link, not a regular file"):
        copy_file(tmp_path / "segment", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_progress_survives(tmp_path: Path) -> None:
    progress = AgentProgress(tmp_path)
    progress.of_node("one")
    progress.segments[7] = SegmentProgress("CommitLog-8-7.log", 5, (3, 3), 2, 1, 1, {"t": 1})
    progress.save()
    progress.close()
    again = AgentProgress(tmp_path)
    assert (again.node, again.totals) == (progress.node, progress.totals)
    assert again.segments[7].position == 5
    with pytest.raises(WritetimeError, match="belongs to the node with the host id one"):
        again.of_node("two")
    again.close()
    (tmp_path / "progress.json").write_text("{")
    with pytest.raises(WritetimeError, match="is damaged"):
        AgentProgress(tmp_path)

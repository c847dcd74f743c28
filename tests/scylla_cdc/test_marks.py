"""The order of the messages that an agent of logs hands over to Kafka."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.scylla_cdc.agents import follow, insert, settings_for, wait_until
from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import CdcDatabase, now
from tests.support.programs import agent
from writetime.capture.change_publisher import ChangePublisher
from writetime.capture.state_files import write_json
from writetime.scylla_cdc.offsets import Offset
from writetime.wire.watermarks import SourceMarks


def test_a_mark_comes_before_the_changes_of_a_table_that_was_created_again(
    cdc: CdcDatabase, late: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent may be killed after it saved the id of the new table: landing discards changes of a log whose mark has
    the id of the earlier one."""
    handed_over: list[tuple[str, str]] = []
    mark, send = ChangePublisher.mark, ChangePublisher.send

    def marked(this: ChangePublisher, source: str, marks: SourceMarks) -> None:
        handed_over.append(("mark", marks.tables[late.schema.full_name].id))
        mark(this, source, marks)

    def sent(this: ChangePublisher, schema: Any, changes: Any) -> Any:
        handed_over.append(("changes", str(schema.id)))
        return send(this, schema, changes)

    monkeypatch.setattr(ChangePublisher, "mark", marked)
    monkeypatch.setattr(ChangePublisher, "send", sent)
    follow(cdc, late, 1)
    settings = settings_for(cdc, tmp_path, late, window_seconds=2)
    insert(cdc, late, 1)
    start = late.sets[0].time // 1000 * 1000
    table_id = str(late.schema.id)
    settings.capture.state_dir.mkdir()
    saved = Offset(start, start, start, table_id, captured_since=now())
    write_json(settings.capture.state_dir / "logs.json", {late.schema.full_name: asdict(saved)})
    # So that the agent begins with the window of the write.
    time.sleep(3)
    with agent(settings):
        wait_until(settings, late, start + 1)
    assert handed_over[0] == ("mark", table_id)
    assert ("changes", table_id) in handed_over

"""A table of the lake is restored into a captured table while an agent runs. The lake gets the imported rows by a
snapshot, and until then it does not report that it has all writes.
"""

from pathlib import Path

import pytest

from tests.capture.agents import assert_view, held, passes, until, with_lake
from tests.support.captured import Captured
from tests.support.made import SCHEMA, add, write
from tests.support.waiting import wait_for
from writetime.lake.table import create_table
from writetime.lake.views import time_now
from writetime.landing.landing import Landing
from writetime.restore.into import restore_into

pytestmark = pytest.mark.long


@pytest.mark.parametrize("merge", [False, True])
def test_a_restore_into_a_captured_table(
    captured: Captured, tmp_path: Path, caplog: pytest.LogCaptureFixture, merge: bool
) -> None:
    """`merge`: the table had rows before."""
    captured.settings = settings = with_lake(captured.settings, tmp_path / "lake")
    lake = create_table(settings, SCHEMA)
    add(lake, [write(i, 0, 1_000_000 + i, v=f"v{i}", w=i) for i in range(20)], 0)
    captured.write("CREATE TABLE {ks}.t (id int, n int, v text, w int, PRIMARY KEY (id, n)) WITH cdc = true")
    if merge:
        captured.write("INSERT INTO {ks}.t (id, n, v) VALUES (3, 0, 'newer')")
    name = f"{captured.keyspace}.t"
    with captured.agent():
        captured.settle()
        passes(captured, "t")
        report = restore_into(settings, lake, str(tmp_path / "out"), name, merge=merge)
        imported_at = time_now()
        assert f"{name} is captured, and an import is not in the log" in caplog.text
        assert report.comparison is not None
        assert report.comparison.proven
        assert report.comparison.newer == int(merge)
        wait_for(lambda: "nodetool import or refresh" in held(captured, "t"))
        captured.write("INSERT INTO {ks}.t (id, n, v) VALUES (4, 0, 'later')")
        captured.settle()
        assert until(captured, "t") <= imported_at
    with captured.agent(snapshot="always"):
        passes(captured, "t")
        assert not held(captured, "t")
    Landing(settings, name).drain()
    assert_view(captured, "t")

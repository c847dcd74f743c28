"""The important pages of the web UI in a real browser: the graph, an asset with checks and plots, and a run's log.

`--screenshots FOLDER` keeps pictures of the pages.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, materialize
from pyspark.sql import SparkSession

from tests.support.browser import browsing, needs_chromium
from tests.support.made import SCHEMA, add, write
from writetime.core import config
from writetime.core.config import TableEntry
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import create_table
from writetime.servers.process import free_port, port_answers
from writetime_dagster.assets import changes, views
from writetime_dagster.resources import LakeResource, SparkResource

ROOT = Path(__file__).parents[2]
TABLE = SCHEMA.full_name
VIEW = f"{SCHEMA.keyspace}/{SCHEMA.name}/{SCHEMA.name}_view"
EXPECT = [{"type": "expect_column_values_to_be_between", "column": "w", "max_value": 100}]
ENTRY = f"""[tables.{TABLE}]
description = "What the shop has."
owners = ["team:shop"]
expect = [{{ type = "expect_column_values_to_be_between", column = "w", max_value = 100 }}]

[replay]
queues = ["orders"]
"""
START_SECONDS = 240.0
PATIENCE_MS = 120_000

pytestmark = [needs_chromium, pytest.mark.long]


@pytest.fixture(scope="module")
def runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Runs of a table: two that are well, and one whose rows are not as its entry expects."""
    home = tmp_path_factory.mktemp("browser")
    (home / "writetime.toml").write_text(f'{ENTRY}\n[lake]\npath = "{home / "lake"}"\nbuckets = 4\n')
    shutil.copy(ROOT / "dagster.yaml", home / "dagster.yaml")
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("WRITETIME_") and n != "WRITETIME_CACHE"]:
            patch.delenv(name)
        patch.setenv("WRITETIME_CONFIG", str(home / "writetime.toml"))
        patch.setenv("WRITETIME_CASSANDRA__PORT", str(free_port()))
        patch.setenv("DAGSTER_HOME", str(home))
        in_lake = create_table(config.load(), SCHEMA)
        table = FollowedTable(TABLE, TableEntry(expect=EXPECT), SCHEMA)
        found = []
        with DagsterInstance.from_config(str(home)) as instance:
            for number, w in enumerate((1, 2, 1000)):
                add(in_lake, [write(number, n, number + 1, v="text", w=w) for n in range(10 * (number + 1))], number)
                result = materialize(
                    [changes.build_state_asset(table), views.build_view_asset(table)],
                    instance=instance,
                    resources={"spark": SparkResource(), "lake": LakeResource()},
                    raise_on_error=False,
                )
                found.append(result.run_id)
        yield found


@pytest.fixture(scope="module")
def page(runs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser's page of the web UI."""
    port = free_port()
    log = tmp_path_factory.mktemp("webserver") / "log"
    command = [sys.executable, "-m", "dagster_webserver", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not port_answers(port):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        with browsing(1400, 860, base_url=f"http://127.0.0.1:{port}") as context:
            context.set_default_timeout(PATIENCE_MS)
            context.set_default_navigation_timeout(PATIENCE_MS)
            yield context.new_page()
    finally:
        server.terminate()
        server.wait(60)


def keep(page: Any, request: pytest.FixtureRequest, name: str) -> None:
    """Keep a screenshot, if wanted."""
    if folder := request.config.getoption("--screenshots"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.wait_for_timeout(2_000)
        page.screenshot(path=Path(folder) / f"{name}.png")


def see(page: Any, *texts: str) -> None:
    """Wait until the page shows each of these."""
    for text in texts:
        page.wait_for_function("text => document.body.innerText.includes(text)", arg=text)


def test_graph(page: Any, request: pytest.FixtureRequest) -> None:
    """Groups, collapsed: the picture of the architecture."""
    page.goto("/asset-groups")
    see(page, "sources", "ingest", "workqueue", "replay", "capture", "backfill", "changes", "views", "row_events")
    keep(page, request, "asset-graph")


def test_checks(page: Any, request: pytest.FixtureRequest) -> None:
    page.goto(f"/assets/{VIEW}?view=checks&checkDetail=rows_are_as_expected")
    see(page, "rows_are_those_of_the_state", "rows_are_as_expected", "rows_are_those_of_the_database", "Failed")
    keep(page, request, "asset-checks")


def test_plots(page: Any, request: pytest.FixtureRequest) -> None:
    page.goto(f"/assets/{VIEW}?view=overview")
    see(page, "What the shop has.", "Row count", "refresh_seconds", "Owners")
    page.get_by_role("button", name="Plots").click()
    page.wait_for_function("() => document.querySelectorAll('canvas').length >= 2")
    page.get_by_role("button", name="Plots").scroll_into_view_if_needed()
    page.mouse.move(640, 700)
    page.mouse.wheel(0, 450)
    keep(page, request, "asset-plots")


def test_log_of_a_run(page: Any, request: pytest.FixtureRequest, runs: list[str]) -> None:
    """A run that failed shows the reason in one sentence."""
    page.goto(f"/runs/{runs[-1]}")
    reason = "the view stays as it was: `w` at most 100: 30 of 30 rows fail, e.g. 1000 (id 2, n 0)"
    see(page, reason, "rows_are_as_expected")
    keep(page, request, "run-log")

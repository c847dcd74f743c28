"""What the web UI shows, and one real run through Dagster's run worker."""

import subprocess
import sys
from pathlib import Path

import pytest
from dagster import AssetKey

from assets.definitions import defs
from assets.ingest import DEAD_LETTERS, USER_EVENTS
from demo.dagster_run import launch
from tests.assets.test_ingest import event_values, produce, stored_rows
from writetime.config import Settings

ROOT = Path(__file__).parents[2]


def test_graph() -> None:
    graph = defs.resolve_asset_graph()
    edges = {
        (parent.to_user_string(), key.to_user_string())
        for key in graph.get_all_asset_keys()
        for parent in graph.get(key).parent_keys
    }
    assert edges == {
        ("sources/flights", "sources/http_events"),
        ("sources/http_events", "sources/user_events_topic"),
        ("sources/user_events_topic", "ingest/user_events"),
        ("ingest/user_events", "ingest/dead_letter_topic"),
        ("ingest/user_events", "ingest/dead_letters"),
        ("ingest/dead_letter_topic", "ingest/dead_letters"),
    }
    for key in graph.get_all_asset_keys():
        assert graph.get(key).description, key
        assert graph.get(key).kinds, key


def test_jobs_schedules_and_sensors() -> None:
    repository = defs.get_repository_def()
    assert {"ingest", "replay_flights"} <= set(repository.job_names)
    assert [s.name for s in repository.sensor_defs] == ["user_events_lag"]
    assert [(s.name, s.cron_schedule) for s in repository.schedule_defs] == [("ingest_schedule", "*/15 * * * *")]
    assert repository.get_job("ingest").asset_layer.executable_asset_keys == {USER_EVENTS, DEAD_LETTERS}
    assert AssetKey(["sources", "flights"]) in repository.get_job("replay_flights").asset_layer.executable_asset_keys


def test_workspace_loads() -> None:
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_a_run_through_the_run_worker(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark, Great Expectations and Delta in the process that the web UI and the daemon start for a run."""
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.chdir(ROOT)
    produce(settings, *event_values(200), b"no event")
    result = launch("ingest", {}, tmp_path / "run.log")
    assert result.metadata["ingest/user_events"]["events_stored"] == 200 == stored_rows(settings)
    assert result.metadata["ingest/dead_letters"]["rows_appended"] == 1
    assert result.checks == dict.fromkeys(result.checks, True)
    assert len(result.checks) == 4

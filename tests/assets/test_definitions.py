"""What the web UI shows."""

import os
import subprocess
import sys
from pathlib import Path

from dagster import AssetKey

from assets.definitions import defs
from assets.ingest import DEAD_LETTERS, USER_EVENTS

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
        ("sources/snapshots", "lake/changes"),
        ("lake/changes", "lake/state"),
        ("lake/state", "lake/view"),
    }
    for key in graph.get_all_asset_keys():
        assert graph.get(key).description, key
        assert graph.get(key).kinds, key


def test_jobs_schedules_and_sensors() -> None:
    repository = defs.get_repository_def()
    assert {"ingest", "dead_letters", "replay_flights", "backfill", "lake"} <= set(repository.job_names)
    assert [s.name for s in repository.sensor_defs] == ["user_events_lag"]
    assert sorted((s.name, s.cron_schedule) for s in repository.schedule_defs) == [
        ("dead_letters_schedule", "5-59/15 * * * *"),
        ("ingest_schedule", "*/15 * * * *"),
    ]
    assert repository.get_job("ingest").asset_layer.executable_asset_keys == {USER_EVENTS, DEAD_LETTERS}
    assert AssetKey(["sources", "flights"]) in repository.get_job("replay_flights").asset_layer.executable_asset_keys


def test_workspace_loads() -> None:
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]
    environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr

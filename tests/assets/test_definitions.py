"""What the web UI shows."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, RunRequest, build_schedule_context, validate_run_config

from assets.automation import TABLE_TAG
from assets.definitions import defs
from assets.ingest import DEAD_LETTERS, USER_EVENTS
from resources import LakeResource

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
        ("sources/commit_logs", "capture/changes_topics"),
        ("sources/commit_logs", "capture/published_segments"),
        ("capture/changes_topics", "capture/landed_changes"),
        ("capture/landed_changes", "lake/state"),
        ("lake/state", "lake/view"),
        ("lake/state", "rows/events"),
        ("rows/events", "rows/topic"),
        ("sources/flight_items", "queue/event_queue"),
        ("queue/event_queue", "queue/completed_events"),
    }
    for key in graph.get_all_asset_keys():
        assert graph.get(key).description, key
        assert graph.get(key).kinds, key


def test_jobs_schedules_and_sensors() -> None:
    repository = defs.get_repository_def()
    own = {
        "ingest",
        "dead_letters",
        "replay_flights",
        "backfill",
        "land",
        "agents",
        "publish_segments",
        "lake",
        "rows",
        "verify",
        "maintain",
    }
    own |= {"completed_events", "queue_health", "drain_queue"}
    assert own <= set(repository.job_names)
    assert sorted(s.name for s in repository.sensor_defs) == ["captured_changes", "stuck_work", "user_events_lag"]
    assert sorted((s.name, s.cron_schedule) for s in repository.schedule_defs) == [
        ("agents_schedule", "*/5 * * * *"),
        ("dead_letters_schedule", "5-59/15 * * * *"),
        ("ingest_schedule", "*/15 * * * *"),
        ("lake_schedule", "*/15 * * * *"),
        ("maintain_schedule", "30 2 * * *"),
        ("rows_schedule", "7-59/15 * * * *"),
        ("verify_schedule", "30 3 * * *"),
    ]
    assert repository.get_job("ingest").asset_layer.executable_asset_keys == {USER_EVENTS, DEAD_LETTERS}
    assert AssetKey(["sources", "flights"]) in repository.get_job("replay_flights").asset_layer.executable_asset_keys


def test_schedules_start_a_run_for_each_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "writetime.toml"
    monkeypatch.setenv("WRITETIME_CONFIG", str(config))
    repository = defs.get_repository_def()
    with DagsterInstance.local_temp(str(tmp_path)) as instance:

        def requests(name: str) -> list[RunRequest]:
            context = build_schedule_context(
                instance, scheduled_execution_time=datetime.now(UTC), resources={"lake": LakeResource()}
            )
            return list(repository.get_schedule_def(name).evaluate_tick(context).run_requests or [])

        for name in ("lake", "rows", "verify", "maintain"):
            config.write_text("")
            assert requests(f"{name}_schedule") == []
            config.write_text('[lake]\ntables = ["shop.orders", "shop.items"]\n')
            found = requests(f"{name}_schedule")
            assert [request.tags[TABLE_TAG] for request in found] == ["shop.orders", "shop.items"]
            for request in found:
                assert validate_run_config(repository.get_job(name), request.run_config)


def test_workspace_loads() -> None:
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]
    environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr

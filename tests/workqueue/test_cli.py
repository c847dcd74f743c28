"""The commands on a real database, with a handler that is found by its name."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from tests.support.sinks import to_toml
from tests.workqueue.stage import until
from tests.workqueue.working import states
from writetime.cli.main import main
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.servers.process import free_port
from writetime.workqueue import dead_items
from writetime.workqueue.inspect import Account, inspecting
from writetime.workqueue.queue_tables import END_OF_TIME, DeadItem

HANDLER = """
def handle(item):
    if item.payload == 3:
        raise ValueError("three")
    return item.payload * 2
"""

WAITING_HANDLER = """
import os

async def handle(item):
    return [await item.step("pid", os.getpid), await item.wait_event("paid", 600)]
"""


def metric(port: int, name: str, **labels: str) -> float | None:
    """A value that a worker reports."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = (s for family in families for s in family.samples if s.name == f"writetime_worker_{name}")
    return next((s.value for s in found if labels == s.labels), None)


@pytest.fixture
def own(queue_settings: Settings, jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings in a file, with a queue whose items are tried once, and a handler in the same folder."""
    queue = queue_settings.workqueue.queues[jobs].model_copy(update={"max_attempts": 1})
    workqueue = queue_settings.workqueue.model_copy(update={"queues": {jobs: queue}, "metrics_port": free_port()})
    settings = queue_settings.model_copy(update={"workqueue": workqueue})
    (tmp_path / "writetime.toml").write_text(to_toml(settings))
    (tmp_path / "my_handlers.py").write_text(HANDLER)
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return settings


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("dead_at", "shown"),
    [
        (1_700_000_000_123, "2023-11-14T22:13:20+00:00"),
        (END_OF_TIME, "9223372036854775000000 microseconds since 1970"),
        (-END_OF_TIME, "-9223372036854776000000 microseconds since 1970"),
    ],
)
def test_a_dead_letter_of_any_time_is_listed(monkeypatch: pytest.MonkeyPatch, dead_at: int, shown: str) -> None:
    letters = [DeadItem("q", 0, UUID(int=n), None, "1", 2, "no", at) for n, at in enumerate((dead_at, 0))]
    monkeypatch.setattr(dead_items, "dead_letters", lambda *_: letters)
    monkeypatch.setattr("writetime.cli.workqueue.inspecting", lambda _: nullcontext())
    found = [line.split("\t")[:3] for line in run("queue", "inspect", "q", "--dead-letters").splitlines()]
    assert found[0] == [str(UUID(int=0)), shown, "2 attempts"]
    assert found[1][1] == "1970-01-01T00:00:00+00:00"


@contextmanager
def working(jobs: str, folder: Path, outcomes: str = "2 completed, 1 dead") -> Iterator[None]:
    """A worker as a program, which ends when it is asked to, with these outcomes."""
    output: list[str] = []
    with program(jobs, folder, output):
        yield
    assert output == [outcomes]


@contextmanager
def program(jobs: str, folder: Path, outputs: list[str] | None = None) -> Iterator[None]:
    command = [Path(sys.executable).with_name("writetime"), "work", "--queue", jobs, "--handler", "my_handlers:handle"]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    if outputs is not None:
        outputs.append(output.strip())


def test_work_inspect_and_redrive(own: Settings, jobs: str, tmp_path: Path) -> None:
    for payload in ("1", "2", "3"):
        run("queue", "enqueue", jobs, payload, "--key", "k")
    with working(jobs, tmp_path):
        until(lambda: len(states(own, jobs)) == 3 and json.loads(run("queue", "inspect", jobs))["depth"] == 0, "")
        assert_counted(own, jobs)
    assert sorted(row.result or "" for row in states(own, jobs).values()) == ["", "2", "4"]
    assert "ValueError: three" in run("queue", "inspect", jobs, "--dead-letters")
    for options in (["--key", "other"], ["--error", "four"]):
        assert run("queue", "redrive", jobs, *options) == "0 redriven\n"
    assert run("queue", "redrive", jobs, "--key", "k", "--error", "three") == "1 redriven\n"
    assert json.loads(run("queue", "inspect", jobs))["received"] == 1
    assert jobs in run("queue", "inspect")
    for command in (["inspect"], ["inspect", "--dead-letters"], ["redrive"]):
        answer = CliRunner().invoke(main, ["queue", *command, f"{jobs}x"])
        assert answer.exit_code == 1
        assert f"no queue {jobs}x was ever used; did you mean {jobs}?" in answer.stderr
    assert f"{jobs}x" not in run("queue", "inspect")


def test_work_ends_when_nothing_is_left(
    own: Settings, jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for payload, delay in (("1", "0"), ("2", "3")):
        run("queue", "enqueue", jobs, payload, "--delay", delay)
    assert run("work", "--queue", jobs, "--handler", "my_handlers:handle", "--until-idle") == "2 completed\n"
    assert json.loads(run("queue", "inspect", jobs))["depth"] == 0


def test_an_item_may_have_its_own_time_limit(own: Settings, jobs: str) -> None:
    item_id = run("queue", "enqueue", jobs, "1", "--time-limit", "2.5").strip()
    for limit in ("0", "-1", "nan", "inf", "1e9"):
        refused = CliRunner().invoke(main, ["queue", "enqueue", jobs, "2", "--time-limit", limit])
        assert refused.exit_code == 1
        assert "a time limit must have more than 0" in refused.stderr
    with connect(own) as session:
        query = f"SELECT item_id, time_limit_seconds FROM {own.cassandra.keyspace}.queue_items"
        [row] = session.execute(f"{query} WHERE queue = %s ALLOW FILTERING", [jobs])
    assert (str(row.item_id), row.time_limit_seconds) == (item_id, 2.5)


def test_a_name_has_one_item_in_its_time(own: Settings, jobs: str) -> None:
    """Its row expires by the database's clock."""
    enqueue = ["queue", "enqueue", jobs, "1", "--key", "k", "--unique"]
    assert run(*enqueue, "report") == run(*enqueue, "report")
    first = run(*enqueue, "soon", "--unique-seconds", "1")
    until(lambda: run(*enqueue, "soon", "--unique-seconds", "1") != first, "the name is free again")
    assert json.loads(run("queue", "inspect", jobs))["received"] == 3
    refused = CliRunner().invoke(main, [*enqueue, ""])
    assert (refused.exit_code, "a unique name must have" in refused.stderr) == (1, True)


def test_a_schedule_has_an_item_per_slot(own: Settings, jobs: str, tmp_path: Path) -> None:
    (tmp_path / "my_handlers.py").write_text("def handle(item): return item.payload")
    schedule = ["queue", "schedule", jobs, "tick", "* * * * * *", '{"n": 1}', "--zone", "Europe/Berlin", "--key", "k"]
    assert run(*schedule) == "scheduled\n"
    assert run(*schedule) == "was scheduled before\n"
    found = json.loads(run("queue", "schedules", jobs))
    assert datetime.fromisoformat(found.pop("next_slot")).utcoffset() in (timedelta(hours=1), timedelta(hours=2))
    assert found == {
        "name": "tick",
        "cron": "* * * * * *",
        "zone": "Europe/Berlin",
        "payload": {"n": 1},
        "key": "k",
    } | {"time_limit_seconds": None}
    for count in (2, 5):
        with program(jobs, tmp_path):
            until(lambda count=count: len(results(own, jobs)) >= count, f"{count} slots have items")
    assert run("queue", "unschedule", jobs, "tick") == "unscheduled\n"
    assert run("queue", "unschedule", jobs, "tick") == "was not scheduled\n"
    assert run("queue", "schedules", jobs) == ""
    slots = [datetime.fromisoformat(result["slot"]) for result in results(own, jobs)]
    assert len(slots) == len(set(slots))
    assert {result["n"] for result in results(own, jobs)} == {1}
    wrong = CliRunner().invoke(main, ["queue", "schedule", jobs, "tick", "61 * * * *"])
    assert (wrong.exit_code, "the cron expression '61 * * * *' is wrong" in wrong.stderr) == (1, True)


def test_an_item_waits_for_an_event(own: Settings, jobs: str, tmp_path: Path) -> None:
    """Its first worker ends meanwhile; the second one does not run its step again."""
    (tmp_path / "my_handlers.py").write_text(WAITING_HANDLER)
    item_id = run("queue", "enqueue", jobs, "1").strip()
    with working(jobs, tmp_path, "no items"):
        until(lambda: json.loads(run("queue", "item", jobs, item_id))["status"] == "sleeping", "it waits")
        state = json.loads(run("queue", "inspect", jobs))
        assert (state["depth"], state["sleeping"], state["oldest_seconds"]) == (1, 1, 0)
    assert run("queue", "event", jobs, item_id, "paid", '{"by": "ada"}') == "sent\n"
    with connect(own) as session:
        query = f"SELECT steps FROM {own.cassandra.keyspace}.queue_state WHERE queue = %s ALLOW FILTERING"
        [steps] = [row.steps for row in session.execute(query, [jobs]) if row.steps]
    with working(jobs, tmp_path, "1 completed"):
        found = json.loads(run("queue", "item", jobs, item_id, "--wait", "60"))
    pid = int(steps["pid"])
    assert (found["status"], found["result"], found["attempts"]) == ("completed", [pid, {"by": "ada"}], 1)
    assert run("queue", "event", jobs, item_id, "paid").startswith("not sent")


def results(settings: Settings, jobs: str) -> list[dict[str, Any]]:
    return [json.loads(row.result) for row in states(settings, jobs).values() if row.result]


def assert_counted(settings: Settings, jobs: str) -> None:
    """The worker reports two completed items and a dead one."""
    port = settings.workqueue.metrics_port
    assert port
    # The worker counts an item once the database has it.
    until(lambda: metric(port, "attempts_total", queue=jobs, outcome="completed") == 2, "two are completed")
    until(lambda: metric(port, "attempts_total", queue=jobs, outcome="dead") == 1, "one is dead")
    until(lambda: metric(port, "shards", queue=jobs) == 4, "the metrics are up to date")
    assert metric(port, "claimed_total", queue=jobs) == 3
    assert metric(port, "handler_seconds_count", queue=jobs) == 3
    assert metric(port, "waited_seconds_count", queue=jobs) == 3
    assert (metric(port, "waited_seconds_sum", queue=jobs) or 0) > 0
    until(lambda: metric(port, "oldest_item_seconds", queue=jobs) == 0, "nothing waits")


def test_a_queue_is_paused_and_items_are_cancelled_and_awaited(own: Settings, jobs: str, tmp_path: Path) -> None:
    good, cancelled = (run("queue", "enqueue", jobs, payload, "--key", "k").strip() for payload in ("1", "2"))
    for key in ([], ["--key", "k"]):
        assert run("queue", "pause", jobs, *key) == "paused\n"
        assert run("queue", "pause", jobs, *key) == "was paused before\n"
    state = json.loads(run("queue", "inspect", jobs))
    assert (state["paused"], state["paused_keys"]) == (True, ["k"])
    assert json.loads(run("queue", "cancel", jobs, cancelled, "--wait", "0"))["status"] == "cancelling"
    for key in ([], ["--key", "k"]):
        assert run("queue", "resume", jobs, *key) == "resumed\n"
        assert run("queue", "resume", jobs, *key) == "was not paused\n"
    assert json.loads(run("queue", "item", jobs, good))["status"] == "waiting"
    with working(jobs, tmp_path, "1 completed"):
        found = json.loads(run("queue", "item", jobs, good, "--wait", "60"))
        assert (found["status"], found["result"], found["attempts"]) == ("completed", 2, 1)
        assert json.loads(run("queue", "item", jobs, cancelled, "--wait", "60"))["status"] == "cancelled"
    assert {str(item_id): row.status for item_id, row in states(own, jobs).items()} == {
        good: "COMPLETED",
        cancelled: "CANCELLED",
    }
    with inspecting(own) as inspector:
        assert inspector.account(jobs) == Account(2, 1, 0, 0, 0, 0, cancelled=1)
    run("queue", "enqueue", jobs, "1", "--key", "k")
    for options, count in (["--key", "l"], 0), (["--older-than", "3600"], 0), (["--key", "k", "--older-than", "0"], 1):
        assert run("queue", "cancel", jobs, *options) == f"{pluralize(count, 'item')} to be cancelled\n"
    for arguments in ([jobs], [jobs, good, "--all"]):
        assert CliRunner().invoke(main, ["queue", "cancel", *arguments]).exit_code == 1
    unknown = CliRunner().invoke(main, ["queue", "item", jobs, str(UUID(int=7 << 76))])
    assert (unknown.exit_code, f"queue {jobs} has no item" in unknown.stderr) == (1, True)


@pytest.mark.parametrize("path", ["nowhere:handle", "json:nothing", "json", "json:__doc__"])
def test_a_wrong_handler_is_named(path: str) -> None:
    result = CliRunner().invoke(main, ["work", "--queue", "q", "--handler", path])
    assert result.exit_code == 1
    assert f"handler {path}" in result.output


def test_a_handler_whose_module_ends_the_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script_without_guard.py").write_text("def handle(item): pass\nraise SystemExit(0)\n")
    result = CliRunner().invoke(main, ["work", "--queue", "q", "--handler", "script_without_guard:handle"])
    assert result.exit_code == 1
    assert "handler script_without_guard:handle: its module calls sys.exit" in result.output

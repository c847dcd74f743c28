"""The end of a run, for each way to start it: one report, and one alert, which the webhook may refuse."""

import locale
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetSelection,
    DagsterEventType,
    DagsterExecutionInterruptedError,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    MaterializeResult,
    MetadataValue,
    OpDefinition,
    RunsFilter,
    asset,
    asset_check,
    build_run_status_sensor_context,
    define_asset_job,
    materialize,
)
from dagster._cli import cli
from dagster._core.events import EngineEventData
from dagster_shared.error import SerializableErrorInfo

from demo import definitions as demo
from tests.support.webhooks import receiving
from writetime.core.config import load
from writetime.core.errors import WritetimeError
from writetime.servers.process import free_port
from writetime_dagster.assets import runs
from writetime_dagster.assets.automation import with_rounds
from writetime_dagster.assets.definitions import platform
from writetime_dagster.assets.failures import retry_if_transient
from writetime_dagster.resources import DatabaseResource, KafkaResource, run_reports

pytestmark = pytest.mark.slow

RESOURCES = {"database": DatabaseResource(), "kafka": KafkaResource()}
ORDERS = AssetKey(["shop", "orders", "orders_view"])


@asset(key=ORDERS, check_specs=[AssetCheckSpec("rows_are_right", asset=ORDERS), AssetCheckSpec("fresh", asset=ORDERS)])
def orders(database: DatabaseResource, kafka: KafkaResource) -> MaterializeResult:
    """A view of which a check fails and another warns."""
    return MaterializeResult(
        metadata={
            "dagster/row_count": 1234567,
            "seconds": 0.25,
            "path": "a|b",
            "until": MetadataValue.timestamp(86400.0),
        },
        check_results=[
            AssetCheckResult(check_name="rows_are_right", passed=False, description="`v` in set ['a|b']"),
            AssetCheckResult(
                check_name="fresh", passed=False, severity=AssetCheckSeverity.WARN, description="a day old"
            ),
        ],
    )


@asset(key=AssetKey(["shop", "orders", "orders_state"]))
@retry_if_transient()
def broken(database: DatabaseResource, kafka: KafkaResource) -> None:
    """An asset whose fault a person has to mend."""
    raise WritetimeError("shop.orders is broken: repair it")


@asset
def slow(context: AssetExecutionContext, database: DatabaseResource) -> None:
    """An asset that an operator stops."""
    context.instance.report_run_canceling(context.run)
    raise DagsterExecutionInterruptedError


def run_of(instance: DagsterInstance, *assets: Any, **kwargs: Any) -> DagsterRun:
    """The run of assets, which has ended."""
    kwargs = {"resources": RESOURCES, "raise_on_error": False, **kwargs}
    return ended(instance, materialize(assets, instance=instance, **kwargs).run_id)


def ended(instance: DagsterInstance, run_id: str) -> DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    assert run.is_finished
    return run


def report_of(instance: DagsterInstance, run: DagsterRun) -> str:
    """The report of a run; the sensors add none, and send no alert."""
    assert run_reports.ended(instance, run) == Path(run.tags[run_reports.REPORT])
    [tagged] = instance.get_runs(RunsFilter(tags={run_reports.REPORT: run.tags[run_reports.REPORT]}))
    assert tagged.run_id == run.run_id
    return Path(run.tags[run_reports.REPORT]).read_text(encoding="utf-8")


@pytest.fixture
def posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The bodies that were posted to the webhook of the settings."""
    monkeypatch.setenv("WRITETIME_ALERTS__REPORTS", str(tmp_path / "reports"))
    with receiving() as (url, posted):
        monkeypatch.setenv("WRITETIME_ALERTS__WEBHOOK", url + "token")
        yield posted


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


def test_report_and_alert(instance: DagsterInstance, posted: list[dict[str, Any]]) -> None:
    run = run_of(instance, orders)
    report = report_of(instance, run)
    assert "| dagster/row_count | 1,234,567 |" in report
    assert "| seconds | 0.25 |" in report
    assert "| path | a\\|b |" in report
    assert "| until | 1970-01-02 00:00:00 UTC |" in report
    assert "## Checks: 0 of 2 passed" in report
    assert "| shop/orders/orders_view | rows_are_right | **failed**: `v` in set ['a\\|b'] |" in report
    [alert] = posted
    assert alert["title"] == f"run {run.run_id} of job {run.job_name}: 2 checks did not pass"
    assert alert["lines"] == [
        "shop/orders/orders_view: rows_are_right **failed**: `v` in set ['a|b']",
        "shop/orders/orders_view: fresh warns: a day old",
    ]
    assert alert["text"].splitlines() == [alert["title"], *(f"- {line}" for line in alert["lines"])]
    assert alert.keys() == {"text", "title", "lines"}

    run = run_of(instance, broken)
    assert report_of(instance, run).startswith(f"# {run.job_name}: failure")
    assert posted[1]["lines"] == ["shop__orders__orders_state: shop.orders is broken: repair it"]


@pytest.mark.parametrize("base", ["http://127.0.0.1:3000", "https://data.example.org/dagster/"])
def test_an_alert_links_to_its_run(
    base: str, instance: DagsterInstance, posted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRITETIME_ALERTS__DAGSTER_URL", base)
    run = run_of(instance, broken)
    [alert] = posted
    assert alert["url"] == f"{base.rstrip('/')}/runs/{run.run_id}"
    assert alert["text"].splitlines() == [alert["title"], f"- {alert['lines'][0]}", alert["url"]]


def test_a_webhook_that_does_not_answer_is_harmless(
    instance: DagsterInstance,
    posted: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = os.environ["WRITETIME_ALERTS__WEBHOOK"]
    monkeypatch.setenv("WRITETIME_ALERTS__WEBHOOK", known.replace("token", "wrong"))
    assert report_of(instance, run_of(instance, broken))
    assert "alerts.webhook does not take the alert" in caplog.text
    # Its URL is a secret.
    assert "hooks/" not in caplog.text


def test_a_report_that_cannot_be_written_does_not_prevent_the_alert(
    instance: DagsterInstance, posted: list[dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither that of a run's own process nor that of a sensor."""
    (tmp_path / "reports").touch()
    run = run_of(instance, broken)
    assert "the report could not be written: FileExistsError: " in caplog.text
    killed = instance.create_run_for_job(
        Definitions([asset(name="fine")(lambda: None)]).get_implicit_global_asset_job_def()
    )
    instance.report_run_failed(killed, "the process was killed")
    run_reports.ended(instance, ended(instance, killed.run_id))
    for alert, of, line in zip(posted, (run, killed), ("shop.orders is broken", "the process was killed"), strict=True):
        assert alert["title"] == f"run {of.run_id} of job {of.job_name}: failure"
        said, fault = alert["lines"]
        assert line in said
        assert fault.startswith("the report could not be written: FileExistsError: ")
    assert run_reports.REPORT in ended(instance, run.run_id).tags


@pytest.fixture
def ascii_only() -> Iterator[None]:
    """A locale whose encoding of files is ASCII. Python ignores it in UTF-8 mode."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    yield
    locale.setlocale(locale.LC_CTYPE, before)


@pytest.mark.usefixtures("ascii_only")
def test_a_report_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    """Also if a message has characters that UTF-8 cannot encode."""
    if not sys.flags.utf8_mode:
        with pytest.raises(UnicodeEncodeError):
            (tmp_path / "other").write_text("ü")
    path = tmp_path / "report.md"
    assert run_reports._write(path, "\u00fc\udc80") == []
    assert path.read_text(encoding="utf-8") == "ü\\udc80"


def test_no_alert_is_sent_if_nothing_is_wrong(instance: DagsterInstance, posted: list[dict[str, Any]]) -> None:
    @asset
    def fine(kafka: KafkaResource) -> None:
        """An asset without a fault."""

    assert "## fine" in report_of(instance, run_of(instance, fine))
    assert posted == []


def test_a_run_that_an_operator_ends(instance: DagsterInstance, posted: list[dict[str, Any]]) -> None:
    run = run_of(instance, slow)
    assert run.status is DagsterRunStatus.CANCELED
    assert report_of(instance, run).startswith("# __ephemeral_asset_job__: canceled")
    assert [alert["title"] for alert in posted] == [f"run {run.run_id} of job {run.job_name}: canceled"]


def test_a_run_that_repeats_another_has_its_own_report(instance: DagsterInstance, posted: list[dict[str, Any]]) -> None:
    first = run_of(instance, broken)
    again = run_of(instance, broken, tags=first.tags)
    assert first.tags[run_reports.REPORT] != again.tags[run_reports.REPORT]
    assert len(posted) == 2


def test_a_run_whose_process_dies_is_reported_by_a_sensor(
    instance: DagsterInstance, posted: list[dict[str, Any]]
) -> None:
    """Once, even if its process has reported a success that did not come."""
    fine = Definitions([asset(name="fine")(lambda: None)]).get_implicit_global_asset_job_def()
    for tags in ({}, {run_reports.REPORTED_STATUS: DagsterRunStatus.SUCCESS.value}):
        run = instance.create_run_for_job(fine, tags=tags)
        instance.add_run_tags(run.run_id, {run_reports.REPORT: f"{run.run_id}.md"} if tags else {})
        instance.report_run_failed(run, "the process was killed")
        [event] = [e.get_dagster_event() for e in instance.all_logs(run.run_id, of_type=DagsterEventType.RUN_FAILURE)]
        for _ in range(2):
            of_run = build_run_status_sensor_context("failed_runs", event, instance, ended(instance, run.run_id))
            runs.sensors()["failed_runs"](of_run)
        assert report_of(instance, ended(instance, run.run_id)).startswith("# __ASSET_JOB: failure")
    assert [alert["lines"] for alert in posted] == [["run: the process was killed"]] * 2


def test_a_run_that_the_daemon_cannot_start_has_the_reason(
    instance: DagsterInstance, posted: list[dict[str, Any]]
) -> None:
    fine = Definitions([asset(name="fine")(lambda: None)]).get_implicit_global_asset_job_def()
    run = instance.create_run_for_job(fine)
    error = SerializableErrorInfo("Unreachable: the request timed out\n", [], "Unreachable")
    instance.report_engine_event("Marking the run as failed", run, EngineEventData.engine_error(error))
    instance.report_run_failed(run)
    text = run_reports.ended(instance, ended(instance, run.run_id)).read_text(encoding="utf-8")
    reason = "Marking the run as failed: Unreachable: the request timed out"
    assert f"- `run`: {reason}\n" in text
    assert f"run: {reason}" in posted[0]["lines"]


def test_a_lasting_fault_of_a_round_is_an_alert_once_an_hour(
    instance: DagsterInstance, posted: list[dict[str, Any]]
) -> None:
    """Another fault is one at once. An age that grows is not another fault."""
    found: list[str] = []

    @asset_check(asset=ORDERS)
    def no_work_is_stuck(kafka: KafkaResource) -> AssetCheckResult:
        return AssetCheckResult(passed=not found, severity=AssetCheckSeverity.WARN, description="; ".join(found))

    selected = AssetSelection.checks(no_work_is_stuck)
    job_of_stage = define_asset_job("queue_health", selected)
    stage = Definitions([orders], jobs=[job_of_stage], asset_checks=[no_work_is_stuck], resources=RESOURCES)
    job = with_rounds(stage).resolve_job_def("observe")

    def alerts(*now: str) -> int:
        """The number of alerts of a run that finds this."""
        found[:], before = now, len(posted)
        job.execute_in_process(instance=instance)
        return len(posted) - before

    assert [alerts("mails: an item has waited for 301.5 s"), alerts("mails: an item has waited for 1,601 s")] == [1, 0]
    assert [alerts("mails: an item has waited for 2 s", "texts: down"), alerts()] == [1, 0]
    assert [alerts("texts: down"), alerts("texts: down")] == [1, 0]
    [last] = instance.get_runs(limit=1)
    instance.add_run_tags(last.run_id, {run_reports._ALERTED_AT: str(time.time() - 3601)})
    assert [alerts("texts: down"), alerts("texts: down")] == [1, 0]
    # Of other jobs, each run counts.
    assert len([run_of(instance, orders) for _ in range(2)]) == 2
    assert len(posted) == 6


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("shop.orders: the oldest is 301.5 s old", "shop.orders: the oldest is 1,601 s old", True),
        ("no change since 2026-11-26 21:03:05", "no change since 2026-11-27 08:00:00", True),
        ("shop.orders_v1: late", "shop.orders_v2: late", False),
        ("mails1: late", "mails2: late", False),
        ("partition 3 has no leader", "partition 7 has no leader", False),
        ("node-1 is down", "node-2 is down", False),
    ],
)
def test_ages_do_not_make_another_fault_and_names_do(one: str, other: str, is_same: bool) -> None:
    first, second = (run_reports._digest(DagsterRunStatus.SUCCESS, [text]) for text in (one, other))
    assert (first == second) is is_same


def test_an_alert_that_the_webhook_did_not_take_is_sent_by_the_next_round(
    instance: DagsterInstance, posted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    @asset_check(asset=ORDERS)
    def no_work_is_stuck(kafka: KafkaResource) -> AssetCheckResult:
        return AssetCheckResult(passed=False, severity=AssetCheckSeverity.WARN)

    job_of_stage = define_asset_job("queue_health", AssetSelection.checks(no_work_is_stuck))
    stage = Definitions([orders], jobs=[job_of_stage], asset_checks=[no_work_is_stuck], resources=RESOURCES)
    job = with_rounds(stage).resolve_job_def("observe")
    with monkeypatch.context() as patch:
        patch.setenv("WRITETIME_ALERTS__WEBHOOK", f"http://127.0.0.1:{free_port()}")
        job.execute_in_process(instance=instance)
    assert posted == []
    for _ in range(2):
        job.execute_in_process(instance=instance)
    assert len(posted) == 1


def test_every_way_to_start_a_run(
    tmp_path: Path, posted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, and by a command. tests/assets/test_daemon.py has those of the daemon and the web UI."""
    (tmp_path / "writetime.toml").write_text(f"[tables.shop.orders]\n[cassandra]\nport = {free_port()}\n")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    # The command loads it by these settings.
    monkeypatch.delitem(sys.modules, "writetime_dagster.assets.definitions")
    command = ["job", "execute", "-m", "writetime_dagster.assets.definitions", "-j", "verify"]
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        job = platform(load()).resolve_job_def("verify")
        job.execute_in_process(instance=instance, raise_on_error=False)
        CliRunner().invoke(cli, command)
        found = instance.get_runs()
        assert {run.status for run in found} == {DagsterRunStatus.FAILURE}
        reports = {report_of(instance, run) for run in found}
    assert len(found) == len(reports) == len(list((tmp_path / "reports").iterdir())) == 2
    assert [alert["title"] for alert in posted] == [
        f"run {run.run_id} of job verify: failure" for run in reversed(found)
    ]
    assert posted[0]["lines"] == posted[1]["lines"]


def test_every_step_uses_a_resource_that_reports_its_run() -> None:
    of_a_table = platform(load(tables={"shop": {"orders": {}}}, cassandra={"port": free_port()}))
    jobs = [job for made in (demo.defs, of_a_table) for job in made.get_repository_def().get_all_jobs()]
    steps = [node.definition for job in jobs for node in job.nodes if isinstance(node.definition, OpDefinition)]
    assert len(steps) > 50
    reporting = {"spark", "database", "kafka", "lake"}
    assert [step.name for step in steps if not step.required_resource_keys & reporting] == []

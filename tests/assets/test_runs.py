"""The end of a run: its report, and an alert to a webhook that accepts it or not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    DagsterInstance,
    DagsterRun,
    MaterializeResult,
    MetadataValue,
    RunsFilter,
    asset,
    materialize,
)

from tests.support.webhooks import receiving
from writetime.core.errors import WritetimeError
from writetime_dagster.assets import runs
from writetime_dagster.assets.failures import by_kind

ORDERS = AssetKey(["shop", "orders", "orders_view"])


@asset(key=ORDERS, check_specs=[AssetCheckSpec("rows_are_right", asset=ORDERS), AssetCheckSpec("fresh", asset=ORDERS)])
def orders() -> MaterializeResult:
    """A view of which a check fails and another warns."""
    return MaterializeResult(
        metadata={
            "dagster/row_count": 1234567,
            "seconds": 0.25,
            "path": "a|b",
            "until": MetadataValue.timestamp(86400.0),
        },
        check_results=[
            AssetCheckResult(check_name="rows_are_right", passed=False),
            AssetCheckResult(
                check_name="fresh", passed=False, severity=AssetCheckSeverity.WARN, description="a day old"
            ),
        ],
    )


@asset(key=AssetKey(["shop", "orders", "orders_state"]))
@by_kind()
def broken() -> None:
    """An asset whose fault a person has to mend."""
    raise WritetimeError("shop.orders is broken: repair it")


def ended(instance: DagsterInstance, *assets: Any) -> tuple[str, DagsterRun]:
    run = materialize(assets, instance=instance, raise_on_error=False).dagster_run
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    path = runs.ended(instance, found)
    [tagged] = instance.get_runs(RunsFilter(tags={runs.REPORT: str(path.resolve())}))
    assert tagged.run_id == run.run_id
    return path.read_text(), found


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    with receiving() as found:
        yield found


def test_report_and_alert(
    webhook: tuple[str, list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url, posted = webhook
    monkeypatch.setenv("WRITETIME_ALERTS__REPORTS", str(tmp_path / "reports"))
    monkeypatch.setenv("WRITETIME_ALERTS__WEBHOOK", url + "token")
    with DagsterInstance.ephemeral() as instance:
        report, run = ended(instance, orders)
        assert "| dagster/row_count | 1,234,567 |" in report
        assert "| seconds | 0.25 |" in report
        assert "| path | a\\|b |" in report
        assert "| until | 1970-01-02 00:00:00 UTC |" in report
        assert "## Checks: 0 of 2 passed" in report
        assert "| shop/orders/orders_view | rows_are_right | **failed** |" in report
        [alert] = posted
        assert alert["title"] == f"run {run.run_id} of job {run.job_name}: success"
        assert alert["lines"] == [
            "shop/orders/orders_view: rows_are_right **failed**",
            "shop/orders/orders_view: fresh warns: a day old",
        ]
        assert alert["text"].splitlines() == [alert["title"], *(f"- {line}" for line in alert["lines"])]

        report, run = ended(instance, broken)
        assert report.startswith(f"# {run.job_name}: failure")
        assert posted[1]["lines"] == ["shop__orders__orders_state: shop.orders is broken: repair it"]

        # What does not take it does no harm, and its URL is a secret.
        monkeypatch.setenv("WRITETIME_ALERTS__WEBHOOK", url + "wrong")
        ended(instance, broken)
        assert "alerts.webhook does not take the alert" in caplog.text
        assert "hooks/wrong" not in caplog.text
        monkeypatch.setenv("WRITETIME_ALERTS__WEBHOOK", "chat.example.com/hooks/secret")
        ended(instance, broken)
        assert "hooks/secret" not in caplog.text


def test_nothing_wrong_is_no_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setenv("WRITETIME_ALERTS__REPORTS", str(tmp_path))
    monkeypatch.setattr("writetime.core.alerts.send", lambda *_: told.append("alert"))

    @asset
    def fine() -> None:
        """An asset without a fault."""

    with DagsterInstance.ephemeral() as instance:
        report, _ = ended(instance, fine)
    assert "## fine" in report
    assert told == []

"""An outage of the lake before the first batch of a table stays within the table."""

from types import SimpleNamespace
from typing import Any

import pytest

from writetime.core import config
from writetime.follow import pipeline
from writetime.follow.pipeline import TablePipeline
from writetime.lake.followed_tables import FollowedTable
from writetime.landing.following import TableLanding
from writetime.wire.watermarks import Sources

AWAY = OSError("Generic S3 error: error sending request")


def fail(*_: Any, **__: Any) -> Any:
    raise AWAY


def landing_of(table: str) -> TableLanding:
    topics: Any = SimpleNamespace(watermarks=SimpleNamespace(reports={}))
    sent: list[Any] = []
    reporter: Any = SimpleNamespace(send=lambda *report: sent.append(report))
    return TableLanding(config.load(), table, topics, reporter)


def test_landing_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the number of waiting changes, which decides whether Spark runs them, cannot be read either."""
    for name in ("not_landed", "is_in_lake"):
        monkeypatch.setattr(pipeline, name, fail)
    monkeypatch.setattr("writetime.landing.following.Landing", fail)
    landing = landing_of("k.t")
    table = TablePipeline(config.load(), landing, FollowedTable("k.t"), in_spark=lambda *_: [])
    assert table.run({0: 1}, Sources()) == 0
    assert (landing.report.status, landing.report.fault) == ("waiting", f"OSError: {AWAY}")


def test_a_look_for_news_meets_it() -> None:
    landing = landing_of("k.t")
    remembered: Any = SimpleNamespace(is_current=fail)
    landing._landing = remembered
    assert not landing.is_current({0: 1}, Sources())
    assert landing.is_behind

"""The tables that `writetime follow` follows, by the reports of landing, which other programs also send."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from writetime.core import config
from writetime.core.errors import Transient
from writetime.landing import following
from writetime.landing.following import TableLanding, failure, reported
from writetime.landing.reports import followed
from writetime.wire.watermarks import LandingReport, Sources, StepReport

STEPS = {"view": StepReport(rows=3)}


class Program:
    """A program that lands a table, whose last report is `was`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, was: LandingReport) -> None:
        self.reports = {"k.t": was}
        watermarks = SimpleNamespace(reports=self.reports, read=Sources)
        self.topics: Any = SimpleNamespace(watermarks=watermarks)
        self.landing: Any = SimpleNamespace(
            name="k.t",
            topics=self.topics,
            held_by=None,
            place=None,
            offsets_landed=1,
            landed={},
            land=lambda *_, **__: 1,
        )
        monkeypatch.setattr(following, "Landing", lambda *_, **__: self.landing)
        monkeypatch.setattr(following, "Reporter", lambda _: self)
        monkeypatch.setattr(following, "REPORT_SECONDS", 0.0)

    def send(self, table: str, report: LandingReport) -> None:
        self.reports[table] = report

    def flush(self) -> None:
        pass

    def table(self) -> TableLanding:
        reporter: Any = self
        return TableLanding(config.load(), "k.t", self.topics, reporter)


def land_all(program: Program) -> None:
    program.landing.place = object()
    program.table().land({0: 1}, Sources())


def land_one(program: Program) -> None:
    with reported(config.load(), program.landing):
        pass


def fail_one(program: Program) -> None:
    program.send("k.t", failure(program.reports["k.t"], Transient("no broker answers"), 0))


@pytest.mark.parametrize("land", [land_all, land_one, fail_one])
@pytest.mark.parametrize("age", [10, 3600])
def test_reports_of_land_keep_no_stopped_follow_alive(
    monkeypatch: pytest.MonkeyPatch, land: Callable[[Program], None], age: float
) -> None:
    """And they end no live one."""
    now = time.time()
    program = Program(monkeypatch, LandingReport(now - age, steps=STEPS, steps_at=now - age))
    land(program)
    report = program.reports["k.t"]
    assert report.at >= now
    assert report.steps == STEPS
    assert followed(program.reports) == ({"k.t"} if age < 60 else set())


def test_a_table_that_does_not_land_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although each report is due when landing has failed."""
    old = time.time() - 3600
    program = Program(monkeypatch, LandingReport(old, steps=STEPS, steps_at=old))
    table = program.table()
    for _ in range(2):
        assert table.land(Transient("no broker answers"), Sources())
        monkeypatch.setattr(following, "REPORT_SECONDS", 3600.0)
        table.report_steps(STEPS)
        monkeypatch.setattr(table, "_next_report", 0.0)
    table.land(Transient("no broker answers"), Sources())
    assert followed(program.reports) == {"k.t"}

"""The attack on the ingress, briefly."""

from pathlib import Path

import pytest

from tests.attack.http import attack
from writetime.config import Settings


@pytest.mark.usefixtures("queue_tables")
def test_no_call_harms_the_ingress(settings: Settings, tmp_path: Path) -> None:
    report = attack(settings, tmp_path, seed=1, rounds=300)
    print(report.text())
    assert report.tried == 300
    assert not report.findings, report.text()
    outcomes = {outcome for counts in report.counts.values() for outcome in counts}
    assert outcomes >= {"acknowledged", "refused", "left"}

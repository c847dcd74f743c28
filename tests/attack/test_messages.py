"""The attack on the readers of topics, briefly."""

from pathlib import Path

from tests.attack.messages import attack
from writetime.config import Settings


def test_no_message_harms_a_reader(settings: Settings, tmp_path: Path) -> None:
    report = attack(settings, tmp_path, seed=1, rounds=8)
    print(report.text())
    assert not report.findings, report.text()
    changes, events = report.counts["changes.<table>"], report.counts["events of the sink"]
    assert min(changes["read"], changes["refused"], events["stored"], events["dead letter"]) > 0

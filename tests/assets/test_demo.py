"""`make demo`, small: real runs through Dagster's run worker, the process that the web UI and the daemon start."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from writetime import database
from writetime.config import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def dagster_home(tmp_path: Path) -> Path:
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
    return home


def run_demo(home: Path) -> dict[str, int]:
    """Run the demo and return the numbers of its report's verdict."""
    environment = {**os.environ, "DAGSTER_HOME": str(home), "DEMO_FLIGHTS": "400", "PYTHONFAULTHANDLER": "1"}
    answer = subprocess.run(
        [sys.executable, "-m", "demo"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    log = home / "demo.log"
    assert answer.returncode == 0, answer.stdout + answer.stderr + (log.read_text()[-5000:] if log.exists() else "")
    assert "nothing lost, nothing twice" in answer.stdout
    assert "checks between the stages: 5 of 5 passed" in answer.stdout
    assert re.search(r"[\d,]+ enqueued = 400 enriched \+ 3 dead: nothing lost, nothing twice", answer.stdout)
    verdict = re.search(r"([\d,]+) taken = ([\d,]+) stored \+ ([\d,]+) duplicates \+ ([\d,]+) dead", answer.stdout)
    assert verdict
    return dict(
        zip(("taken", "stored", "duplicates", "dead"), (int(n.replace(",", "")) for n in verdict.groups()), strict=True)
    )


def test_the_demo_adds_up_and_a_second_one_adds_no_row(settings: Settings, dagster_home: Path) -> None:
    first = run_demo(dagster_home)
    assert first["dead"] == 5
    with database.connect(settings) as session:
        rows = database.count_rows(session, f"{settings.cassandra.keyspace}.user_events", "user_id")
    assert first["stored"] == rows > 400

    second = run_demo(dagster_home)
    assert second == {"taken": first["taken"], "stored": 0, "duplicates": first["taken"] - 5, "dead": 5}

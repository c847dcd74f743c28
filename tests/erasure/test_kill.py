"""After a kill at any write, a second run erases the rest, and changes nothing else.

Oracle: a search of all files by other programs, and the rows and events of a run that was not killed.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long


def test_killed_at_writes(tmp_path: Path, is_long: bool) -> None:
    every = 1 if is_long else 23
    command = [sys.executable, "-m", "tests.erasure.killed", str(tmp_path), str(every), str(random.randint(1, every))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    [whole] = [found for found in runs if not found["killed"]]
    assert len(runs) > 60 // every
    assert len(whole["view"]) == 6
    for found in runs:
        assert found["left"] == {}, found["kill_at"]
        assert found["others"], found["kill_at"]
        assert (found["view"], found["events"]) == (whole["view"], whole["events"]), found["kill_at"]

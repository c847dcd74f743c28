"""After a kill at a commit, the view is the old or the new one, and a second run gives the same as without a kill."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long


def test_killed_at_commits(tmp_path: Path, is_long: bool) -> None:
    # An odd number, so that some kills are before a commit and some are after it.
    every = 1 if is_long else 11
    first = random.randint(1, every)
    command = [sys.executable, "-m", "tests.lake.killed", str(tmp_path), str(every), str(first)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    # The last run was not killed: it counts the commits that there are.
    [whole] = [r for r in runs if not r["killed"]]
    assert len(runs) > 10 // every
    for found in runs:
        for name in ("virtual", "compacted", "state", "as_of"):
            assert found[name] == whole[name], (found["kill_at"], found["after"], name)
        assert found["left"] in [None, [], *whole["refreshed"]], (found["kill_at"], found["after"])
    assert whole["virtual"] == whole["as_of"]
    assert len(whole["compacted"]) == len(whole["virtual"]) > 0

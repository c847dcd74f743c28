"""After a kill at any commit, a second run gives the same result as an undisturbed one."""

import json
import subprocess
import sys
from pathlib import Path


def test_killed_at_every_commit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.lake.killed", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    # The last run was not killed: it counts the commits that there are.
    [whole] = [r for r in runs if not r["killed"]]
    assert len(runs) > 10
    for found in runs:
        for name in ("virtual", "compacted", "state", "as_of"):
            assert found[name] == whole[name], (found["kill_at"], found["after"], name)
    assert whole["virtual"] == whole["as_of"]
    assert len(whole["compacted"]) == len(whole["virtual"]) > 0

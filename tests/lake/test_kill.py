"""Whatever is killed at whatever commit, running it again gives what would have been."""

import json
import subprocess
import sys
from pathlib import Path


def test_killed_at_every_commit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.lake.killed", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    # The last run of each kind was not killed: it counts the commits that there are.
    whole = [r for r in runs if not r["killed"]]
    assert len(whole) == 2
    assert len(runs) > 2 * 10
    for found in runs:
        for name in ("virtual", "compacted", "state", "as_of"):
            assert found[name] == whole[0][name], (found["kill_at"], found["after"], name)
    assert whole[0]["virtual"] == whole[0]["as_of"]
    assert len(whole[0]["compacted"]) == len(whole[0]["virtual"]) > 0

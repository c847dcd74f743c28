"""An agent that stops for ever when it has read and recorded the first SSTable of table `t`, so that it can be killed
within that table's snapshot: `python -m tests.capture.held_agent agent`.
"""

import threading
from collections.abc import Mapping
from uuid import UUID

from writetime.capture.snapshots import SnapshotProgress, Snapshots
from writetime.cli.main import main

_keep = Snapshots._keep


def _keep_and_hold(self: Snapshots, changed: Mapping[UUID, SnapshotProgress]) -> None:
    _keep(self, changed)
    found = [progress for progress in changed.values() if progress.table.endswith(".t")]
    if any(progress.status == "taken" and progress.read for progress in found):
        threading.Event().wait()


if __name__ == "__main__":
    Snapshots._keep = _keep_and_hold
    main()

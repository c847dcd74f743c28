"""The lake's work on a Spark cluster, as a program. The master and all other options come from the settings.

    python -m tests.cluster.lake_job KS.TABLE SNAPSHOT...

It lands the table's messages, too, if there are any. It prints what was done, on which executors, how many tasks can
run at once, and the error of a task that fails.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from writetime.clients.spark import spark_session
from writetime.core import config
from writetime.core.errors import Transient
from writetime.lake import state
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.spark_tasks import in_spark, tasks_at_once
from writetime.lake.table import create_table
from writetime.landing.landing import Landing
from writetime.landing.topics import captured_tables
from writetime.row_events.stream import extend
from writetime.view.refreshing import refresh

REASON = "a store does not answer, as it says at length: " + "wait " * 1000


def fail(reason: str) -> None:
    """A task that fails."""
    raise Transient(reason)


def main() -> None:
    """Bring snapshots and messages in, fold them, make the view and the row events."""
    settings = config.load()
    executors: set[str] = set()
    with spark_session(settings) as session:

        def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
            # Each executor has a working folder of its own.
            found = in_spark(session)(lambda task: (os.getcwd(), function(task)), tasks)
            executors.update(executor for executor, _ in found)
            return [result for _, result in found]

        found = find_snapshots(sys.argv[2:])
        table = create_table(settings, found.schema)
        name = table.name
        done: dict[str, Any] = {
            "tasks_at_once": tasks_at_once(session),
            "landed": Landing(settings, name).drain(run) if name in captured_tables(settings) else 0,
            "changes": sum(count for _, count in backfill(table, found, run=run)),
            "files_folded": state.fold(table, run),
            "rows": refresh(settings, table, run, whole=True).rows,
            "events": extend(table, run=run),
        }
        try:
            in_spark(session)(fail, [REASON])
        except Exception as e:
            done["error"] = [type(e).__name__, str(e)]
    print(json.dumps(done | {"executors": sorted(executors)}))


if __name__ == "__main__":
    main()

"""The whole erasure, and its certificate: what was searched, what was removed, and what remains elsewhere."""

from typing import Any

import orjson

from writetime.clients.kafka import topic_names
from writetime.core.config import Settings
from writetime.core.instants import instant_text
from writetime.erasure.erasing import (
    Erasing,
    follow_events,
    follow_view,
    record,
    require_published,
    require_replicated,
)
from writetime.erasure.finding import find_places
from writetime.erasure.places import UNKNOWN
from writetime.erasure.topics import topics_of
from writetime.files.key_ranges import KeyRanges
from writetime.lake.erasures import folder_of, record_name
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now

REMAINS = (
    "the database, its snapshots, commit logs and backups",
    "commit logs that agents archive or have set aside (capture.archive, capture.state_dir)",
    "copies and backups of the lake: after restoring one, erase again",
    "earlier versions of deleted objects in a store that keeps them, and snapshots of its disks",
    "SSTables of restores, clusters that the table is replicated to, and what consumers of row events keep",
    "events from which the rows were made, and their dead letters (ingest), work items and replay queues",
    "decoded files on other machines: delete their folder lake.cache, which may be deleted at any time",
    "changes that agents send again, or from later snapshots of nodes, in Kafka: the lake leaves them out",
    "logs, alerts, reports of errors, and the storage of Dagster, which may quote values",
    "files of tasks that other programs ran meanwhile and that failed: `writetime maintain` deletes them after "
    "lake.vacuum_hours, and this command, run again, at once",
    "what an Iceberg catalog keeps of its tables from before: names of files and counts, but no values",
    "the ids of erased row events, which show to someone with a key that its rows had events",
)
"""What this does not reach."""


def erase(
    settings: Settings, table: LakeTable, ranges: KeyRanges, *, kafka: bool = True, delete_records: bool = False
) -> dict[str, Any]:
    """Erase partitions, or rows of them; return the certificate, which is also in the lake. It is repeated after a
    kill, or after any error.

    Args:
        settings: of the installation.
        table: the table.
        ranges: whole partitions, and rows that begin with the same clustering values (`places`), in order.
        kafka: whether the table may have topics.
        delete_records: whether to delete all messages of the table's topics that have landed or were published.

    Raises:
        WritetimeError: live rows are among them, or a deletion of a range needs their clustering values. Nothing was
            done.
        Transient: another program has to do something first: run this again.
    """
    if kafka:
        # Before anything is done.
        topic_names(settings)
    places = find_places(table, ranges)
    # All that follow the changes must get the deletions before these are erased, too.
    require_replicated(table, table.changes.load().version)
    follow_view(settings, table)
    follow_events(table)
    require_published(table, places)
    number = record(table, places)
    erasing = Erasing(settings, table, places)
    erasing.run()
    folder = folder_of(table)
    certificate = {
        "table": table.name,
        "erasure": number,
        "record": f"{folder.address}/{record_name(number)}",
        "partitions": int(places.are_whole.sum()),
        "rows": int((~places.are_whole).sum()),
        "unknown": int((places.until == UNKNOWN).sum()),
        "erased_at": instant_text(time_now()),
        "done": {name: dict(counts) for name, counts in erasing.done.items()},
        "iceberg": erasing.iceberg,
        "topics": topics_of(settings, table, delete_records=delete_records) if kafka else [],
        "remains": [*REMAINS],
    }
    with folder.writing(f"{number:08}.certificate.json") as file:
        file.write(orjson.dumps(certificate, option=orjson.OPT_INDENT_2))
    return certificate

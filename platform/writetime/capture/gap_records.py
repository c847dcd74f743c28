"""Records of the intervals in which writes may have reached no segment, in the folder of the segments set aside.

Each record is a file, and a gap of its tables (`segments.CaptureGap`). It ends as other gaps do: a newer snapshot of
the agent covers it, or an operator loads a snapshot and deletes the file.
"""

import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from writetime.capture.progress import OPEN
from writetime.capture.segments import aside_folder
from writetime.capture.state_files import read_json, write_json
from writetime.core.config import Capture
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text

log = logging.getLogger(__name__)

_SUFFIX = ".reason.json"
_REMEDY = (
    "bring a snapshot that is taken after that into the lake with `writetime backfill` and delete this file, or start "
    'the agent with capture.snapshot = "always"'
)


def cdc_off_name(table_id: UUID | str) -> str:
    """Return the name of the record that a table was written to with `cdc = false`."""
    return f"cdc-off-{table_id}"


def record_file(capture: Capture, name: str) -> Path:
    """Return the file of a record."""
    return aside_folder(capture) / f"{name}{_SUFFIX}"


class Unlogged:
    """The records of an agent, by name. Times are in microseconds."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def begin(self, name: str, fault: str, remedy: str, since: int, tables: Iterable[UUID] | None) -> None:
        """Record that writes to some tables reach no segment from a time on, until `end`.

        Args:
            name: the name of the record.
            fault: the fault, as a sentence.
            remedy: what ends the fault.
            since: the last time at which there was no fault.
            tables: the ids of the tables; None for all.
        """
        before, ids = self._read(name), _texts(tables)
        if before is None or before["written_before"] != OPEN or before["tables"] != ids:
            self._write(name, fault, remedy, (since, OPEN), ids)

    def end(self, name: str) -> None:
        """Record that writes reach the segments again, if a record began."""
        before = self._read(name)
        if before is not None and before["written_before"] == OPEN:
            now = time.time_ns() // 1000
            fault = before.get("fault", before["reason"])
            self._write(name, f"{fault} (until {instant_text(now)})", None, (now, now), before["tables"])

    def note(self, name: str, fault: str, since: int, until: int, tables: Iterable[UUID] | None) -> None:
        """Record that writes to some tables (None: to any) between two times are in no segment."""
        before, ids = self._read(name), _texts(tables)
        if before is None or before["written_before"] < until or before["tables"] not in (None, ids):
            self._write(name, fault, None, (since, until), ids)

    def is_open(self, name: str) -> bool:
        """Return whether a record began and did not end."""
        before = self._read(name)
        return before is not None and before["written_before"] == OPEN

    def open_after(self, prefix: str) -> set[str]:
        """Return the names of the records with this prefix that did not end, each without the prefix."""
        paths = aside_folder(self._capture).glob(f"{prefix}*{_SUFFIX}")
        names = (path.name.removesuffix(_SUFFIX) for path in paths)
        return {name.removeprefix(prefix) for name in names if self.is_open(name)}

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return read_json(record_file(self._capture, name))
        except WritetimeError:
            # It is reported as a gap of all tables. An operator must correct it.
            return None

    def _write(
        self, name: str, fault: str, remedy: str | None, times: tuple[int, int], tables: list[str] | None
    ) -> None:
        """Write a record. An earlier record of the name becomes part of it."""
        before, began = self._read(name), datetime.fromtimestamp(times[0] / 1e6, UTC).isoformat()
        if before is not None:
            began = min(began, before["set_aside_at"])
            earlier: list[str] | None = before["tables"]
            tables = None if tables is None or earlier is None else sorted({*tables, *earlier})
        reason = f"{fault}: {remedy}; then {_REMEDY}" if remedy else f"{fault}: {_REMEDY}"
        content = {
            "reason": reason,
            "fault": fault,
            "tables": tables,
            "written_before": times[1],
            "set_aside_at": began,
        }
        path = record_file(self._capture, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
        log.error("%s: %s", path, reason)


def _texts(tables: Iterable[UUID] | None) -> list[str] | None:
    return None if tables is None else sorted(map(str, tables))

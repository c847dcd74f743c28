"""The gaps of an agent: times or segments with missing changes, each in a file `<name>.reason.json`.

The files are in the folder of the segments that were set aside. One has the name of such a segment, of one that
vanished, or of a cause for which writes reached no segment. A gap ends if the agent publishes a newer snapshot, if its
segment was put back and published, or if an operator loads a snapshot and deletes the file.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from writetime.capture.progress import OPEN
from writetime.capture.state_files import read_json, write_json
from writetime.core.config import Capture
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.instants import instant_text, parse_instant
from writetime.core.outages import is_outage

log = logging.getLogger(__name__)

_SUFFIX = ".reason.json"
_REMEDY = (
    "bring a snapshot that is taken after that into the lake with `writetime backfill` and delete this file, or start "
    'the agent with capture.snapshot = "always"'
)


@dataclass(frozen=True)
class CaptureGap:
    """Missing changes, and the reason. All were written before `until`, and found to be missing at `since`
    (microseconds). `tables` are the ids of their tables; None if they may belong to any table.
    """

    reason: str
    until: int
    since: int = 0
    tables: frozenset[str] | None = None

    def concerns(self, table_id: UUID) -> bool:
        """Return whether changes of a table may be missing."""
        return self.tables is None or str(table_id) in self.tables


def cdc_off_name(table_id: UUID | str) -> str:
    """Return the name of the record that a table was written to with `cdc = false`."""
    return f"cdc-off-{table_id}"


class GapRecords:
    """The records of an agent's gaps, by name. Times are in microseconds."""

    def __init__(self, capture: Capture) -> None:
        self.folder = capture.aside or capture.state_dir / "aside"

    def file(self, name: str) -> Path:
        """Return the file of a record."""
        return self.folder / f"{name}{_SUFFIX}"

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of the records that begin with a prefix."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"{prefix}*{_SUFFIX}"))

    def gaps(self) -> list[CaptureGap]:
        """Return the gaps of all records."""
        return [gap for name in self.names() if (gap := read_gap(self.file(name))) is not None]

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a record: a dictionary with the keys that `read_gap` reads, and others for the operator."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.file(name), content)

    def is_open(self, name: str) -> bool:
        """Return whether a record began and did not end."""
        before = self._read(name)
        return before is not None and before["written_before"] == OPEN

    def note(
        self,
        name: str,
        fault: str,
        since: int,
        tables: Iterable[UUID] | None,
        *,
        until: int | None = None,
        remedy: str = "",
    ) -> None:
        """Record that writes to some tables (None: to any) from `since` to `until` are in no segment. An earlier record
        of the name becomes part of it. `until` is by default now, and `OPEN` if only `end` ends it.

        `fault` is a sentence, `since` the last time at which there was no fault, and `remedy` what ends the fault.
        """
        before, until = self._read(name), time.time_ns() // 1000 if until is None else until
        ids = None if tables is None else sorted(map(str, tables))
        if before is not None:
            earlier: list[str] | None = before["tables"]
            has_all = earlier is None or (ids is not None and set(ids) <= set(earlier))
            if has_all and before["written_before"] >= until:
                return
            ids = None if ids is None or earlier is None else sorted({*ids, *earlier})
            until = max(until, before["written_before"])
        began = instant_text(since)
        reason = f"{fault}: {remedy}; then {_REMEDY}" if remedy else f"{fault}: {_REMEDY}"
        content = {
            "reason": reason,
            "fault": fault,
            "tables": ids,
            "written_before": until,
            "set_aside_at": began if before is None else min(began, before["set_aside_at"]),
        }
        self.write(name, content)
        log.error("%s: %s", self.file(name), reason)

    def end(self, name: str) -> None:
        """Record that writes reach the segments again, if a record began."""
        before = self._read(name)
        if before is not None and before["written_before"] == OPEN:
            now = time.time_ns() // 1000
            fault = f"{before['fault']} (until {instant_text(now)})"
            reason = f"{fault}: {_REMEDY}"
            self.write(name, before | {"reason": reason, "fault": fault, "written_before": now})
            log.error("%s: %s", self.file(name), reason)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return read_json(self.file(name))
        except WritetimeError:
            # It is reported as a gap of all tables. An operator must correct it.
            return None


def read_gap(file: Path) -> CaptureGap | None:
    """Return the gap of a record; None if it was just deleted. A record that cannot be read holds all tables, because
    its gap may belong to any.
    """
    try:
        found = read_json(file)
        if found is None:
            return None
        tables = None if found["tables"] is None else frozenset(found["tables"])
        since = parse_instant(found["set_aside_at"])
        return CaptureGap(f"{file}: {found['reason']}", found["written_before"], since, tables)
    except Exception as e:
        if is_outage(e):
            raise
        return CaptureGap(f"{file} cannot be read ({reason_of(e)}): restore it, or delete it to accept the gap", OPEN)

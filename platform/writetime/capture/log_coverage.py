"""Determines for which time an agent can vouch that its node logs all writes to captured tables in `cdc_raw`.

The agent checks this at its start, before each watermark, and when the segments show that the node was started again.
The node's settings, keyspaces and segments are facts of one moment. Facts of the time in between come from the log
itself, which has the schema changes, and from the SSTables of the captured tables (`unlogged_files`). A time for which
the agent cannot vouch begins with the last check that was good. It is recorded (`gap_records`), and it holds the
watermarks of the tables concerned.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import UUID

from writetime.capture.decoding import Switch
from writetime.capture.gap_records import CaptureGap, GapRecords, cdc_off_name
from writetime.capture.node_facts import NodeFacts
from writetime.capture.node_schemas import Node, NodeTable, NodeTables
from writetime.capture.progress import NODE_FILE, OPEN
from writetime.capture.segments import backlog_of
from writetime.capture.state_files import damaged, read_json, write_json
from writetime.capture.unlogged_files import START_MILLIS, Imports, LastCheck, lost_writes
from writetime.changes.starts import Truncation
from writetime.core.config import Capture
from writetime.core.errors import reason_of
from writetime.core.instants import instant_text
from writetime.schema.types import quote_name
from writetime.storage.file_errors import StorageError
from writetime.storage.segment import END, Segment

log = logging.getLogger(__name__)

# The records of all tables.
_NOT_LINKED, _RESTARTED, _DELETED = "node-without-cdc", "node-restarted", "segments-deleted"
_LOADED = "streams-not-logged"
# The records of a table.
_IMPORTED, _UNTRUNCATED = "imported-", "truncation-undone-"
_TRANSACTIONAL = "transactional-"
# The record of a keyspace.
_NOT_DURABLE = "not-durable-"
# The node deletes the oldest segments down to its limit, and may then remove some that are empty.
_FEW_SEGMENTS = 4


@dataclass(frozen=True)
class Listing:
    """The segments in a folder. `found` are the ids of those with writes to captured tables, each with the offset up to
    which it may be read.
    """

    folder: Path
    segments: Sequence[Segment]
    found: Mapping[int, int]

    @property
    def ids(self) -> list[int]:
        """The ids of the segments."""
        return [segment.id for segment in self.segments]


class LogCoverage:
    """The facts of the last good check, in `node.json`, and the records of times without capture.

    `tables` are those of the last run of the agent, and `published_until` is a time (microseconds) up to which it has
    vouched. Raises a WritetimeError if `node.json` is damaged or missing.
    """

    def __init__(self, capture: Capture, tables: NodeTables, published_until: int) -> None:
        self._path = capture.state_dir / NODE_FILE
        self._records = GapRecords(capture)
        stored = read_json(self._path)
        if stored is None and published_until:
            raise damaged(self._path, "it is missing, although the agent has published a watermark")
        self._last = LastCheck(**(stored or {}))
        self._last.checked_at = max(published_until, self._last.checked_at) or time.time_ns() // 1000
        self._saved: LastCheck | None = None
        # The tables at the last good check.
        self._captured = tables.with_cdc
        names = [name for name in self._records.names(_NOT_DURABLE) if self._records.is_open(name)]
        self._not_durable = {name.removeprefix(_NOT_DURABLE) for name in names}
        names = [name for name in self._records.names(_TRANSACTIONAL) if self._records.is_open(name)]
        self._transactional = {UUID(name.removeprefix(_TRANSACTIONAL)) for name in names}
        self._facts: NodeFacts | None = None
        # Why the agent does not know whether all writes to a table were logged, and the segments that came meanwhile.
        self._unknown: dict[UUID, str] = {}
        self._meanwhile: dict[int, Segment] = {}
        self._is_good = True
        self._imports = Imports()
        self._loaded_at = 0

    def earlier_folder(self, facts: NodeFacts, present: Path) -> Path | None:
        """Return the folder of segments at the last good check, if the node was started since and uses it no longer."""
        if self._last.cdc_raw is None or not self._is_restarted(facts):
            return None
        folder = Path(self._last.cdc_raw)
        is_used = folder.is_dir() and (folder.samefile(present) or _is_same(folder, facts.cdc_raw))
        return folder if folder.is_dir() and not is_used else None

    def _is_restarted(self, facts: NodeFacts) -> bool:
        return self._last.generation not in (None, facts.generation)

    def needs_check(self, ids: Sequence[int]) -> bool:
        """Return whether there are segments of another start of the node than at the last check."""
        return self._is_good and bool(ids) and max(ids) - self._last.newest_segment >= START_MILLIS

    def gaps(self) -> list[CaptureGap]:
        """Return the recorded gaps, and those that last only until the agent can read what it needs."""
        since = self._last.checked_at
        unknown = [CaptureGap(reason, OPEN, since, frozenset([str(i)])) for i, reason in self._unknown.items()]
        return self._records.gaps() + unknown

    def check(self, facts: NodeFacts, listing: Listing, tables: NodeTables) -> bool:
        """Check that the node links its segments to the folder, and did so since the last good check. Return whether it
        does. Also record which tables are not logged.
        """
        # The records begin with the last good check, so they are made before this one counts.
        self.note_not_logged(tables)
        self._facts, self._unknown, before = facts, {}, set(self._unknown.values())
        is_restarted = self._is_restarted(facts)
        fault = self._fault(facts, listing)
        self._is_good = fault is None
        if fault is not None:
            self._note(_NOT_LINKED, fault[0], None, until=OPEN, remedy=fault[1])
            return False
        if is_restarted and not self._has_present_start(facts, listing):
            self._wait_for_present_start(facts, listing, before)
            return False
        if is_restarted and not self._records.is_open(_NOT_LINKED):
            self._check_restart(facts, listing)
        self._records.end(_NOT_LINKED)
        self._note_loaded(facts)
        self._is_good = not self._unknown
        if self._is_good:
            self._meanwhile = {}
            self._last.checked_at = facts.synced_until
            self._last.is_folder_of_node = _is_same(listing.folder, facts.cdc_raw)
            self._last.generation, self._captured = facts.generation, tables.with_cdc
        self.note_listed(listing)
        return True

    def _note(
        self, name: str, fault: str, tables: Sequence[NodeTable] | None, until: int | None = None, remedy: str = ""
    ) -> None:
        """Record writes to some tables (None: to any) that reached no segment after the last good check."""
        ids = None if tables is None else [table.id for table in tables]
        self._records.note(name, fault, self._last.checked_at, ids, until=until, remedy=remedy)

    def _fault(self, facts: NodeFacts, listing: Listing) -> tuple[str, str] | None:
        """Return why the node does not link its segments to the folder now, and the remedy."""
        if not facts.cdc_enabled:
            fault = f"the node runs with cdc_enabled: false since {instant_text(facts.generation * 10**6)} or later"
            return fault, "start the node with cdc_enabled: true"
        if self._last.is_folder_of_node and not _is_same(listing.folder, facts.cdc_raw):
            fault = f"the node's cdc_raw_directory is {facts.cdc_raw}, and the agent reads {listing.folder}"
            return fault, "remove capture.cdc_raw from the settings, or correct it, and start the agent"
        return None

    def _has_present_start(self, facts: NodeFacts, listing: Listing) -> bool:
        """Return whether the folder has a segment of the node's present start, or has none because it is full."""
        # A node that blocks writes links no segment while the folder is full, and refuses all captured writes.
        size_with_next = backlog_of(listing.folder) + 2 * facts.segment_bytes
        is_full = facts.blocks_writes and size_with_next > facts.total_bytes
        return is_full or max(listing.ids, default=0) > self._last.newest_segment

    def _wait_for_present_start(self, facts: NodeFacts, listing: Listing, before: set[str]) -> None:
        """Hold all watermarks until a segment comes. Only then it is known which segments are missing. Log the reason
        unless the last check had it.

        A folder that is filled by copies gets them later than the node's own folder.
        """
        reason = (
            f"{listing.folder} has no segment of the node's present start, and the node's cdc_raw_directory is "
            f"{facts.cdc_raw}: if none comes, set capture.cdc_raw to the path of that folder on the agent's machine"
        )
        if reason not in before:
            log.error("all watermarks wait: %s", reason)
        self._is_good, self._unknown = False, {table.id: reason for table in self._captured}

    def _check_restart(self, facts: NodeFacts, listing: Listing) -> None:
        """Record whether the node may have run without its segments in the folder since the last good check."""
        came = self._meanwhile | {segment.id: segment for segment in listing.segments}
        growing = [i for i, until in listing.found.items() if until != END]
        newest = self._last.newest_segment
        stale = [i for i in growing if abs(i - newest) < START_MILLIS < max(listing.ids) - i]
        if stale:
            # A node with cdc_enabled completes the segments of a crash when it replays them.
            self._note_restart(f"segment {stale[0]} of a crash was replayed with cdc_enabled: false")
            return
        for table in self._captured:
            if table.id in self._transactional:
                continue
            try:
                lost = lost_writes(facts, table, came, self._last)
            except (OSError, StorageError) as e:
                reason = f"the node was restarted, and the files of {table.full_name} cannot be read: {reason_of(e)}"
                log.error("the watermark of %s waits: %s", table.full_name, reason)
                self._unknown[table.id] = f"{reason}: let the agent read the node's data files"
                continue
            if lost is not None:
                self._note_restart(f"{table.full_name} {lost}")
                return

    def _note_restart(self, evidence: str) -> None:
        fault = (
            "the node ran for some time with cdc_enabled: false or another cdc_raw_directory, or its segments were "
            f"deleted unread, or it crashed before it synced writes that it had flushed: {evidence}"
        )
        self._note(_RESTARTED, fault, None)

    def note_listed(self, listing: Listing) -> None:
        """Record which segments came, before any of them is released. Call `check` first if `needs_check`."""
        if self._unknown:
            # The check is repeated, and needs to know them.
            self._meanwhile.update((segment.id, segment) for segment in listing.segments)
            return
        last, newest = self._last, max(listing.ids, default=0)
        if newest > last.newest_segment:
            if last.newest_segment and self._facts is not None and self._may_be_deleted(self._facts, listing):
                fault = (
                    "the node runs with cdc_block_writes: false and has deleted its oldest segments, because "
                    f"{listing.folder} is full; none from {last.newest_segment + 1} to {min(listing.ids) - 1} was read"
                )
                self._note(_DELETED, fault, None)
            last.newest_segment = newest
        if last.newest_written is None and listing.ids:
            last.newest_written = min(listing.ids) - 1
        if last.newest_written is not None:
            last.newest_written = max([last.newest_written, *listing.found])
        last.cdc_raw = str(listing.folder)
        if self._saved is None or replace(last, checked_at=self._saved.checked_at) != self._saved:
            write_json(self._path, asdict(last))
            self._saved = replace(last)

    def _may_be_deleted(self, facts: NodeFacts, listing: Listing) -> bool:
        """Return whether the node may have deleted segments that were never listed.

        It deletes the oldest ones first, so not if an earlier one is there. It also removes segments without changes,
        but deletes others only when the folder is full.
        """
        full = max(facts.total_bytes - _FEW_SEGMENTS * facts.segment_bytes, facts.total_bytes // 2)
        is_gap = not facts.blocks_writes and min(listing.ids) > self._last.newest_segment + 1
        return is_gap and backlog_of(listing.folder) >= full

    # --- files that are no writes -------------------------------------------------------------------------------------

    def note_imports(self, tables: NodeTables, *, always: bool) -> None:
        """Record the tables to which SSTables were added. Call this often, and with `always` before a watermark passes
        the present time.
        """
        if self._facts is None:
            return
        for table, path in self._imports.look(self._facts.data_folders, _live(tables), always=always):
            fault = (
                f"SSTables were added to {table.full_name} with nodetool import or refresh, and no segment has their "
                f"rows: {path}"
            )
            self._note(f"{_IMPORTED}{table.id}", fault, [table])

    def _note_loaded(self, facts: NodeFacts) -> None:
        """Record that SSTables were streamed to the node and added as files."""
        if facts.loaded_at > max(self._last.checked_at, self._loaded_at):
            fault = (
                "sstableloader streamed SSTables to the node, which runs with cdc_on_repair_enabled: false, and no "
                f"segment has their rows (until {instant_text(facts.loaded_at)})"
            )
            self._note(_LOADED, fault, None)
            self._loaded_at = facts.loaded_at

    def undone(
        self, found: Mapping[UUID, Truncation], unreadable: Collection[UUID], tables: NodeTables
    ) -> list[NodeTable]:
        """Return the captured tables of which the node no longer has the last TRUNCATE that was recorded here."""
        return [
            table
            for table in _live(tables)
            if table.id not in unreadable
            and (found[table.id].at if table.id in found else 0) < self._last.truncated.get(str(table.id), 0)
        ]

    def note_truncations(
        self, found: Mapping[UUID, Truncation], unreadable: Collection[UUID], tables: NodeTables
    ) -> None:
        """Record the tables whose last TRUNCATE the node has undone. It deletes its record of the truncation when it
        restores segments up to an earlier time, and then has the rows from before it again (`CommitLogReplayer`).
        """
        for table in self.undone(found, unreadable, tables):
            fault = (
                f"the node was restored to a time before the TRUNCATE of {table.full_name} at "
                f"{instant_text(self._last.truncated[str(table.id)])}, and no segment has all rows from before it"
            )
            self._note(f"{_UNTRUNCATED}{table.id}", fault, [table])
        now = {}
        for table in _live(tables):
            before = self._last.truncated.get(str(table.id), 0)
            at = before if table.id in unreadable else found[table.id].at if table.id in found else 0
            if at:
                now[str(table.id)] = at
        self._last.truncated = now

    # --- schema changes -----------------------------------------------------------------------------------------------

    def note_not_logged(self, tables: NodeTables) -> None:
        """Record which keyspaces with captured tables have `durable_writes = false`, and which captured tables Accord
        writes to. Call this when the schemas were read, also without a check.
        """
        self._note_durability(tables)
        self._note_transactional(tables)

    def _note_durability(self, tables: NodeTables) -> None:
        captured = tables.with_cdc
        found = {t.keyspace for t in captured} & tables.not_durable
        for keyspace in found:
            fault = f"keyspace {keyspace} has durable_writes = false, and no segment has the writes to its tables"
            remedy = f"run ALTER KEYSPACE {quote_name(keyspace)} WITH durable_writes = true"
            concerned = [t for t in captured if t.keyspace == keyspace]
            self._note(_NOT_DURABLE + keyspace, fault, concerned, until=OPEN, remedy=remedy)
        for keyspace in self._not_durable - found:
            self._records.end(_NOT_DURABLE + keyspace)
        self._not_durable = found

    def _note_transactional(self, tables: NodeTables) -> None:
        """Accord has a journal of its own, and applies its writes without the commit log (`TxnWrite.Update.write`)."""
        for table in _live(tables):
            if table.id in tables.transactional:
                fault = f"Accord writes to table {table.full_name}, and no segment has these writes"
                remedy = (
                    f"run ALTER TABLE {quote_name(table.keyspace)}.{quote_name(table.name)} WITH transactional_mode = "
                    "'off', and finish its migration (nodetool consensus_admin)"
                )
                self._note(f"{_TRANSACTIONAL}{table.id}", fault, [table], until=OPEN, remedy=remedy)
        for table_id in self._transactional - tables.transactional:
            self._records.end(f"{_TRANSACTIONAL}{table_id}")
        self._transactional = set(tables.transactional)

    def note_cdc(self, table: NodeTable) -> None:
        """Record that the `cdc` of a table was switched."""
        if table.captured:
            self._records.end(cdc_off_name(table.id))
            return
        fault = f"table {table.full_name} had cdc = false, and no segment has the writes of that time"
        remedy = f"run ALTER TABLE {quote_name(table.keyspace)}.{quote_name(table.name)} WITH cdc = true"
        self._note(cdc_off_name(table.id), fault, [table], until=OPEN, remedy=remedy)

    def note_switches(self, switches: Sequence[Switch], tables: NodeTables, node: Node) -> None:
        """Record the switches off that the commit log has and that no read of the schemas showed, because they were
        switched on again before. Raise Unreachable if the node does not answer.
        """
        for switch in switches:
            known = [t for t in _live(tables) if t.keyspace == switch.keyspace and switch.table in (None, t.name)]
            if not known or (switch.table is None and switch.keyspace in tables.not_durable):
                # No table is concerned, or the record of the present state includes this switch.
                continue
            back_at = _last_change(node, switch)
            concerned = [t for t in known if t.captured_at < (back_at if switch.table is None else switch.at)]
            if not concerned:
                continue
            if switch.table is None:
                name, what = _NOT_DURABLE + switch.keyspace, f"keyspace {switch.keyspace} had durable_writes = false"
            else:
                name, what = cdc_off_name(concerned[0].id), f"table {switch.keyspace}.{switch.table} had cdc = false"
            fault = f"{what} from {instant_text(switch.at)} on, and no segment has the writes of that time"
            self._records.note(name, fault, switch.at, [t.id for t in concerned], until=back_at)


def _live(tables: NodeTables) -> list[NodeTable]:
    """Return the captured tables that the node has now."""
    return [t for t in tables.with_cdc if t.id in tables.live]


def _is_same(folder: Path, of_node: str | None) -> bool:
    return of_node is not None and Path(of_node).is_dir() and folder.samefile(of_node)


def _last_change(node: Node, switch: Switch) -> int:
    """Return the time (microseconds) of the last schema change of a keyspace or table. It was switched on by then."""
    query = f"SELECT writetime({switch.column}) AS at FROM system_schema.{{}} WHERE keyspace_name = '{switch.keyspace}'"
    if switch.table is None:
        rows = node.rows(query.format("keyspaces"))
    else:
        rows = node.rows(query.format("tables") + f" AND table_name = '{switch.table}'")
    return max((row["at"] for row in rows if row["at"] is not None), default=switch.at)

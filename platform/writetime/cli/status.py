"""What `writetime status` shows of agents and of landing."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from writetime.capture.metrics import read_status
from writetime.clients.kafka import answers, topic_names
from writetime.core.config import Settings
from writetime.core.instants import instant_text
from writetime.scylla_cdc.findings import finding_lines
from writetime.wire.watermarks import WATERMARKS_TOPIC, LandingReport, WatermarkTopic, statuses

# Tables of a list that are shown without `--all`, so that all lists fit one screen.
_SHOWN = 3


def status_lines(settings: Settings, *, everything: bool = False) -> Iterator[str]:
    """Yield what the agent of this state folder said last, nothing if there never was one, and what landing reports.

    Args:
        settings: where the agent's state and Kafka are.
        everything: show all tables, and not those only that matter most.
    """
    found: dict[str, Any] | None = read_status(settings.capture.state)
    if found is not None:
        yield f"agent      {_ago(found['at'])}      state {settings.capture.state}"
        yield from _lines(found, everything=everything)
    if not answers(settings):
        yield "landing    not known, as Kafka does not answer"
        return
    if WATERMARKS_TOPIC not in topic_names(settings):
        return
    topic = WatermarkTopic(settings)
    topic.read()
    yield from _landing_lines(topic.reports, everything=everything)


def agents_lines(settings: Settings, *, everything: bool = False) -> Iterator[str]:
    """Yield what the agents of all nodes and logs said last, which is in Kafka. One whose words cannot be read hides no
    other."""
    for source, found in statuses(settings).items():
        try:
            address = found.get("address", "")
            lines = [f"agent of {source}      {_ago(found['at'])}      {address}".rstrip()]
            lines += _lines(found, everything=everything)
        except Exception as e:
            lines = [f"agent of {source}      cannot be read ({type(e).__name__}: {e})"]
        yield from lines


def _lines(found: Mapping[str, Any], *, everything: bool) -> Iterator[str]:
    if "logs" in found:
        yield from _log_lines(found["logs"], everything=everything)
    else:
        yield from _node_lines(found)
        yield from _shortened(sorted(found.get("held", {}).items()), _held_lines, everything=everything)
        yield from _shortened(sorted(found.get("not_captured", {}).items()), _refused_lines, everything=everything)
    snapshots = [(table, s) for table, s in sorted(found["snapshots"].items()) if s["state"] != "done"]
    yield from _shortened(snapshots, _snapshot_lines, everything=everything)
    by_changes = sorted(found["changes"].items(), key=lambda item: (-sum(item[1].values()), item[0]))
    yield from _shortened(sorted(by_changes) if everything else by_changes, _change_lines, everything=everything)
    for what, count in sorted(found["errors"].items()):
        yield f"  errors   {count} of {what}"


def _shortened(
    tables: Sequence[tuple[str, Any]], lines: Callable[[str, Any], Iterator[str]], *, everything: bool
) -> Iterator[str]:
    """Yield the lines of the first tables, and how many more there are."""
    for table, found in tables if everything else islice(tables, _SHOWN):
        yield from lines(table, found)
    if not everything and len(tables) > _SHOWN:
        yield f"  ... and {len(tables) - _SHOWN} more tables: writetime status --all"


def _snapshot_lines(table: str, snapshot: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"  snapshot {table}: {snapshot['state']}, {snapshot['sstables_read']} of {snapshot['sstables']} "
        f"SSTables, {snapshot['changes']:,} changes"
    )


def _held_lines(table: str, reason: str) -> Iterator[str]:
    yield f"  held     {table}: {reason}"


def _refused_lines(table: str, reason: str) -> Iterator[str]:
    yield f"  not captured: {table}: {reason}"


def _change_lines(table: str, kinds: Mapping[str, int]) -> Iterator[str]:
    yield f"  {table}: " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))


def _landing_lines(reports: Mapping[str, LandingReport], *, everything: bool) -> Iterator[str]:
    if not reports:
        return
    failing = [(table, report) for table, report in sorted(reports.items()) if report.fault is not None]
    failing.sort(key=lambda item: item[1].state != "set aside")
    counts = {state: sum(r.state == state for r in reports.values()) for state in ("set aside", "waiting")}
    yield (
        f"landing    {len(reports)} tables: {counts['set aside']} set aside, {counts['waiting']} waiting; "
        f"last report {_ago(max(report.at for report in reports.values()))}"
    )
    yield from _shortened(failing, _report_lines, everything=everything)
    if everything:
        sound = [(table, report) for table, report in sorted(reports.items()) if report.fault is None]
        yield from _shortened(sound, _report_lines, everything=True)


def _report_lines(table: str, report: LandingReport) -> Iterator[str]:
    if report.fault is None:
        yield f"  {table}: {report.changes:,} changes, {_ago(report.at)}"
    else:
        since = instant_text(round(report.since * 1e6))
        yield f"  {table}: {report.state} since {since}, {report.attempts} attempts: {report.fault[:300]}"


def _node_lines(found: Mapping[str, Any]) -> Iterator[str]:
    lag, totals = found["lag"], found["totals"]
    limit = lag["backlog_limit_bytes"]
    share = f" ({100 * lag['backlog_bytes'] / limit:.0f} % of cdc_total_space)" if limit else ""
    yield (
        f"  lag      {lag['lag_bytes']:,} bytes, {lag['lag_segments']} segments, {lag['lag_seconds']:.1f} s, "
        f"the oldest segment of {lag['oldest_segment_seconds']:.1f} s ago"
    )
    yield f"  backlog  {lag['backlog_bytes']:,} bytes{share}"
    yield (
        f"  segments {totals['segments']:,} done with, {totals['segments_set_aside']} set aside, "
        f"{totals['segments_vanished']} vanished; {lag['aside_segments']} of them are missing now"
    )
    if totals["mutations_set_aside"] or totals["changes_set_aside"]:
        yield f"  aside    {totals['mutations_set_aside']:,} mutations, {totals['changes_set_aside']:,} changes"
    if until := found["published_until"]:
        yield f"  all that was written is published up to {instant_text(until)}, {_ago(until / 1e6)}"
    if found["held_by"]:
        yield f"  held     {found['held_by']}"


def _log_lines(logs: Mapping[str, Mapping[str, Any]], *, everything: bool) -> Iterator[str]:
    # Those with a fault first, then those that are furthest behind.
    tables = sorted(logs.items(), key=lambda item: (not item[1]["fault"], item[1]["until"], item[0]))
    yield from _shortened(sorted(tables) if everything else tables, _table_log_lines, everything=everything)


def _table_log_lines(table: str, found: Mapping[str, Any]) -> Iterator[str]:
    until = found["until"]
    yield f"  {table}: published up to {instant_text(until)}, {_ago(until / 1e6)}" if until else f"  {table}: not yet"
    if found["fault"]:
        yield f"    {found['fault']}"
    for line in finding_lines(found.get("found", {})):
        yield f"    {line}"


def _ago(instant: float) -> str:
    return f"{time.time() - instant:.0f} s ago"

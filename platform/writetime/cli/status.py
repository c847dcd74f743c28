"""The lines of `writetime status` on agents and landing."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from writetime.capture.metrics import read_status
from writetime.cli.screen import Entries, fit
from writetime.clients.kafka import answers, topic_names
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.instants import instant_text
from writetime.scylla_cdc.findings import finding_lines
from writetime.wire.watermarks import WATERMARKS_TOPIC, LandingReport, WatermarkTopic, statuses

# The number of lines per agent if all agents are shown.
_LINES_OF_AGENT = 15
# Of the kinds of changes.
_NOUNS = {
    "row": "row",
    "static": "static row",
    "range_tombstone": "range tombstone",
    "partition_tombstone": "partition tombstone",
}


def status_parts(settings: Settings, *, everything: bool = False) -> Iterator[str | Entries]:
    """Yield the last report of the agent of this state folder, if there is one, and the reports of landing of tables
    with a fault. With `everything`, those of the other tables follow, and the agent's tables are in the order of
    their names.
    """
    found: dict[str, Any] | None = read_status(settings.capture.state_dir)
    if found is not None:
        yield f"agent      {_ago(found['at'])}      progress in {settings.capture.state_dir}"
        yield from _parts(found, everything=everything)
    if not answers(settings):
        yield "landing    unknown, because Kafka does not answer"
        return
    if WATERMARKS_TOPIC not in topic_names(settings):
        return
    topic = WatermarkTopic(settings)
    topic.read()
    yield from _landing_parts(topic.reports, everything=everything)


def agents_lines(settings: Settings, *, everything: bool = False) -> Iterator[str]:
    """Yield the last reports of the agents of all nodes and logs, from Kafka. A report that cannot be read does not
    hide the others.
    """
    for source, found in statuses(WatermarkTopic(settings).read()).items():
        try:
            address = found.get("address", "")
            lines = [f"agent of {source}      {_ago(found['at'])}      {address}".rstrip()]
            lines += fit(_parts(found, everything=everything), None if everything else _LINES_OF_AGENT)
        except Exception as e:
            lines = [f"agent of {source}      cannot be read ({type(e).__name__}: {e})"]
        yield from lines


def _parts(found: Mapping[str, Any], *, everything: bool) -> Iterator[str | Entries]:
    if "logs" in found:
        yield _logs(found["logs"], everything=everything)
    else:
        yield from _node_lines(found)
        yield Entries([[f"  held     {table}: {reason}"] for table, reason in sorted(found.get("held", {}).items())])
        refused = sorted(found.get("not_captured", {}).items())
        yield Entries([[f"  not captured: {table}: {reason}"] for table, reason in refused])
    snapshots = [(table, s) for table, s in sorted(found["snapshots"].items()) if s["status"] != "done"]
    yield Entries([[_snapshot_line(table, snapshot)] for table, snapshot in snapshots])
    by_changes = sorted(found["changes"].items(), key=lambda item: (-sum(item[1].values()), item[0]))
    yield Entries([[_change_line(*item)] for item in (sorted(by_changes) if everything else by_changes)])
    if found["errors"]:
        yield "  errors   " + ", ".join(f"{count} of {kind}" for kind, count in sorted(found["errors"].items()))


def _snapshot_line(table: str, snapshot: Mapping[str, Any]) -> str:
    return (
        f"  snapshot {table}: {snapshot['status']}, {snapshot['sstables_read']} of "
        f"{pluralize(snapshot['sstables'], 'SSTable')}, {pluralize(snapshot['changes'], 'change', ',')}"
    )


def _change_line(table: str, kinds: Mapping[str, int]) -> str:
    return f"  {table}: " + ", ".join(
        pluralize(count, _NOUNS.get(kind, kind), ",") for kind, count in sorted(kinds.items())
    )


def _landing_parts(reports: Mapping[str, LandingReport], *, everything: bool) -> Iterator[str | Entries]:
    if not reports:
        return
    failing = [(table, report) for table, report in sorted(reports.items()) if _fails(report)]
    failing.sort(key=lambda item: item[1].status != "set aside")
    counts = {status: sum(r.status == status for r in reports.values()) for status in ("set aside", "waiting")}
    yield (
        f"landing    {pluralize(len(reports), 'table')}: {counts['set aside']} set aside, {counts['waiting']} waiting; "
        f"last report {_ago(max(report.at for report in reports.values()))}"
    )
    yield Entries([_report_lines(table, report, everything=everything) for table, report in failing])
    if everything:
        sound = [(table, report) for table, report in sorted(reports.items()) if not _fails(report)]
        yield Entries([_report_lines(table, report, everything=True) for table, report in sound])


def _fails(report: LandingReport) -> bool:
    return report.fault is not None or any(step.fault for step in report.steps.values())


def _report_lines(table: str, report: LandingReport, *, everything: bool) -> list[str]:
    if report.fault is None:
        lines = [f"  {table}: {pluralize(report.changes, 'change', ',')}, {_ago(report.at)}"]
    else:
        since = instant_text(round(report.since * 1e6))
        # Whole, because the remedy is at its end.
        lines = [f"  {table}: {report.status} since {since}, {pluralize(report.attempts, 'attempt')}: {report.fault}"]
    for name, step in report.steps.items():
        behind = f", behind since {instant_text(round(step.behind_since * 1e6))}" if step.behind_since else ""
        if step.fault is not None:
            lines.append(f"    {name} fails{behind}: {step.fault}")
        elif everything:
            last = f", the last {step.batch:,} in {step.delay * 1000:,.0f} ms" if step.batch else ""
            lines.append(f"    {name}: {pluralize(step.rows, 'row', ',')}{last}{behind}")
    return lines


def _node_lines(found: Mapping[str, Any]) -> Iterator[str]:
    lag, totals = found["lag"], found["totals"]
    limit = lag["backlog_limit_bytes"]
    share = f" ({100 * lag['backlog_bytes'] / limit:.0f} % of cdc_total_space)" if limit else ""
    yield (
        f"  lag      {pluralize(lag['lag_bytes'], 'byte', ',')}, {pluralize(lag['lag_segments'], 'segment')}, "
        f"{lag['lag_seconds']:.1f} s, the oldest segment of {lag['oldest_segment_seconds']:.1f} s ago"
    )
    yield f"  backlog  {pluralize(lag['backlog_bytes'], 'byte', ',')}{share}"
    segments = (
        f"  segments {totals['segments']:,} done, {totals['segments_set_aside']} set aside, "
        f"{totals['segments_vanished']} vanished; {lag['aside_segments']} of them are missing now"
    )
    if totals["mutations_set_aside"] or totals["changes_set_aside"]:
        mutations = pluralize(totals["mutations_set_aside"], "mutation", ",")
        segments += f"; {mutations}, {pluralize(totals['changes_set_aside'], 'change', ',')} set aside"
    yield segments
    if until := found["published_until"]:
        yield f"  all writes are published up to {instant_text(until)}, {_ago(until / 1e6)}"
    if found["held_by"]:
        yield f"  held     {found['held_by']}"


def _logs(logs: Mapping[str, Mapping[str, Any]], *, everything: bool) -> Entries:
    # Those with a fault first, then those that are furthest behind.
    tables = sorted(logs.items(), key=lambda item: (not item[1]["fault"], item[1]["until"], item[0]))
    return Entries([list(_table_log_lines(*item)) for item in (sorted(tables) if everything else tables)])


def _table_log_lines(table: str, found: Mapping[str, Any]) -> Iterator[str]:
    until = found["until"]
    yield f"  {table}: published up to {instant_text(until)}, {_ago(until / 1e6)}" if until else f"  {table}: not yet"
    if found["fault"]:
        yield f"    {found['fault']}"
    for line in finding_lines(found.get("found", {})):
        yield f"    {line}"


def _ago(instant: float) -> str:
    return f"{time.time() - instant:.0f} s ago"

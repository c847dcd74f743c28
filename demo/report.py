"""The demo's report: a screen of numbers that must add up."""

from dataclasses import dataclass
from pathlib import Path

from writetime.config import Settings


@dataclass(frozen=True)
class Numbers:
    """What was counted at each end: by the HTTP client, by the sink, in the database, in the lake.

    `enqueued` items were acknowledged; the other numbers of items are the database's.
    """

    flights: int
    sent: int
    acknowledged: int
    calls: int
    calls_repeated: int
    broken: int
    stored: int
    rows_added: int
    duplicates: int
    dead: int
    dead_letters_added: int
    replay_per_second: float
    sink_per_second: float
    enqueued: int
    items_added: int
    enriched: int
    items_dead: int
    with_plane: int
    with_weather: int

    @property
    def taken(self) -> int:
        """All that Kafka has acknowledged and the sink had to deal with."""
        return self.acknowledged + self.broken

    @property
    def add_up(self) -> bool:
        """Whether nothing was lost and nothing stored twice."""
        return (
            self.taken == self.stored + self.duplicates + self.dead
            and self.stored == self.rows_added
            and self.dead == self.dead_letters_added
            and self.enqueued == self.items_added == self.enriched + self.items_dead
        )


def render(numbers: Numbers, checks: dict[str, bool], settings: Settings, log_file: Path) -> str:
    """Return the report as text."""
    n = numbers
    table = f"{settings.cassandra.keyspace}.{settings.ingest.table}"
    rows = [
        ("events sent over HTTP", n.sent, f"{n.flights:,} flights, {n.calls} calls, {n.calls_repeated} made twice"),
        ("acknowledged with 202", n.acknowledged, f"{n.replay_per_second:,.0f} a second"),
        ("broken messages, sent past HTTP", n.broken, ""),
        ("stored", n.stored, f"{n.rows_added:,} rows more in {table}, counted by CQL"),
        ("duplicates dropped", n.duplicates, "same Idempotency-Key, or stored by an earlier run"),
        ("dead letters", n.dead, f"{n.dead_letters_added:,} rows more in the lake, each with its reason"),
        ("work items enqueued", n.enqueued, f"a flight each, and {n.enqueued - n.flights} that are none"),
        ("flights enriched", n.enriched, f"{n.with_plane:,} with their plane, {n.with_weather:,} with the weather"),
        ("dead items", n.items_dead, "no flights, given up by the handler"),
    ]
    lines = ["", *(f"  {label:<32}{count:>10,}   {note}".rstrip() for label, count, note in rows), ""]
    sign, verdict = ("=", "nothing lost, nothing twice") if n.add_up else ("≠", "THE NUMBERS DO NOT ADD UP")
    lines.append(
        f"  {n.taken:,} taken {sign} {n.stored:,} stored + {n.duplicates:,} duplicates + {n.dead:,} dead: {verdict}"
    )
    lines.append(f"  {n.enqueued:,} enqueued {sign} {n.enriched:,} enriched + {n.items_dead:,} dead: {verdict}")
    lines.append(f"  sink ({settings.ingest.mode} on Spark): {n.sink_per_second:,.0f} events a second")
    passed = sum(checks.values())
    failed = "".join(f", failed: {name}" for name, ok in checks.items() if not ok)
    lines.append(f"  checks between the stages: {passed} of {len(checks)} passed{failed}")
    lines += [
        "",
        "  where to look: `make ui` (runs, checks, plots) at http://127.0.0.1:3000",
        f"                 `.venv/bin/writetime dead-letters list`, log {log_file}",
        "                 `.venv/bin/writetime queue inspect flights --dead-letters`",
        "                 the servers keep running: `.venv/bin/writetime status`, `.venv/bin/writetime down`",
    ]
    return "\n".join(lines)

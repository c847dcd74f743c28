"""Runs plans together on one node, because nodetool and the commit log serve all tables of a round at once."""

import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lake.histories.node import Node
from tests.lake.histories.plan import Plan, cut, size
from tests.lake.histories.table import HistoryTable
from tests.support.generate import KEYSPACE

_COMPACTION = "{'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}"
_AHEAD_SECONDS = 20_000


@dataclass(frozen=True)
class Failure:
    """The result of a plan."""

    plan: Plan
    round: int
    reason: str


@dataclass
class Result:
    """The results of plans: the number of statements, the number of comparisons of view and database, failures."""

    failures: list[Failure]
    statements: int = 0
    comparisons: int = 0


def run_plans(plans: Sequence[Plan], node: Node) -> Result:
    """Run plans, each on a new table; a plan that fails ends there, and the others continue."""
    # No chosen second comes while this runs. What has expired by the database's own clock becomes a tombstone as it is
    # compacted, which beats a cell of the same write time: the answer would depend on when that was.
    base = int(time.time()) + _AHEAD_SECONDS
    folder = Path(tempfile.mkdtemp(prefix="histories-"))
    result = Result([])
    tables: dict[str, HistoryTable] = {}
    try:
        for plan in plans:
            statement = plan.schema.create_statement()
            joiner = " AND " if " WITH " in statement else " WITH "
            node.execute(f"{statement}{joiner}cdc = true AND compaction = {_COMPACTION}")
            tables[plan.schema.name] = HistoryTable(plan, folder / plan.schema.name, base)
        for number in range(max(len(plan.rounds) for plan in plans)):
            for name in _round(number, tables, node, base, result):
                del tables[name]
        for plan in plans:
            node.execute(f"DROP TABLE {plan.schema.full_name}")
    finally:
        shutil.rmtree(folder)
    return result


def _round(number: int, tables: dict[str, HistoryTable], node: Node, base: int, result: Result) -> set[str]:
    """Run a round of all tables; return those that failed."""
    rounds = {name: table.plan.rounds[number] for name, table in tables.items()}
    for each in rounds.values():
        for item in each.of("alter"):
            node.execute(item.text)
    writes = [i for each in rounds.values() for i in each.of("write")]
    result.statements += len(writes) - len(node.write((i.text, base + i.second, i.timestamp) for i in writes))
    for verb in ("flush", "compact"):
        if chosen := [name for name, each in rounds.items() if verb in {i.text for i in each.of("disk")}]:
            node.nodetool(verb, KEYSPACE, *chosen)
    tag = f"round{number}"
    snapped = [name for name, each in rounds.items() if "snapshot" in {i.text for i in each.of("disk")}]
    if snapped:
        node.nodetool("snapshot", "-t", tag, "-kt", ",".join(f"{KEYSPACE}.{name}" for name in snapped))
    schemas = node.schemas(KEYSPACE)
    logged = node.log([schemas[name] for name in tables])
    failed = set()
    for name, table in tables.items():
        try:
            table.follow(schemas[name])
            table.logged(logged.get(name, []))
            if name in snapped:
                table.snapshot(node.snapshot(schemas[name], tag))
            for item in rounds[name].of("step"):
                table.step(item.text)
            before = table.comparisons
            table.compare(node, rounds[name].seconds)
            result.comparisons += table.comparisons - before
        except Exception:
            failed.add(name)
            result.failures.append(Failure(table.plan, number, traceback.format_exc(limit=-12)))
    return failed


def alone(plan: Plan, node: Node) -> Failure | None:
    """Run one plan; return its result if it fails."""
    found = run_plans([plan], node).failures
    return found[0] if found else None


def shrink(failure: Failure, fails: Callable[[Plan], Failure | None], seconds: float = 300.0) -> Failure:
    """Leave out of a plan all that is not needed for it to fail, as far as that is found in time."""
    deadline = time.monotonic() + seconds
    best = failure
    attempts = 0
    chunk = size(best.plan)
    while chunk >= 1:
        start = 0
        while start < size(best.plan) and time.monotonic() < deadline:
            attempts += 1
            keep = [not start <= i < start + chunk for i in range(size(best.plan))]
            if smaller := fails(cut(best.plan, keep).named(f"{failure.plan.schema.name}s{attempts}")):
                best = smaller
            else:
                start += chunk
        chunk //= 2
    return best

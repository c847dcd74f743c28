"""Undoes what an interval of a random history did to a table of a node.

Oracle: the answers of CQL from a second table, which got the same statements without those of the interval.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cassandra.cluster import Session
from click.testing import CliRunner, Result

import writetime
from tests.support.history import HOUR, START, instant_after
from tests.support.timed_writes import Answers
from tests.undo.conftest import Damaged
from writetime.cli.main import main
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.undo import applying
from writetime.undo.applying import apply_plan
from writetime.undo.damage import KINDS, Interval
from writetime.undo.plan import UndoPlan, folder_of, make_plan

pytestmark = pytest.mark.long

BAD = Interval(instant_after(0), instant_after(1))
SEEDS = range(4)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def cells(tables: Damaged, plan: UndoPlan) -> list[dict[str, Any]]:
    """All cells of a plan, read as users read them."""
    folder = folder_of(tables.lake, plan.id).address
    return (
        pa.concat_tables([pq.read_table(f"{folder}/{file.name}") for file in plan.files]).to_pylist()
        if plan.files
        else []
    )


def by_key(answers: Answers) -> dict[tuple[str, ...], dict[str, Any]]:
    """The rows with their values, write times, and the seconds in which each cell may expire."""
    expiries = iter(answers.expiries)
    return {(row["k"], row["c"], row["d"]): row | {f"ttl{n}": next(expiries) for n in range(3)} for row in answers.rows}


def left_lists(found: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    """The rows whose list was written again since."""
    return {key_of(cell) for cell in found if cell["kind"] == "written_since" and cell["column"] == "l"}


def key_of(cell: dict[str, Any]) -> tuple[str, ...]:
    return tuple(repr(cell["row"][name]) for name in "kcd")


def assert_undone(found: Answers, wanted: Answers, plan: UndoPlan, planned: list[dict[str, Any]]) -> None:
    """Compare all cells. Those that the undo wrote have its write time."""
    one, other = by_key(found), by_key(wanted)
    assert one.keys() == other.keys()
    left = left_lists(planned)
    written = {(*key_of(cell), cell["column"]) for cell in planned if cell["kind"] != "written_since"}
    for key, row in one.items():
        for name, value in row.items():
            same = other[key][name]
            if name.startswith("ttl"):
                assert (value is None) == (same is None)
                assert value is None or (value[0] <= same[1] + 1 and same[0] <= value[1] + 1)
            elif name.startswith("writetime") and value == repr(plan.write_time):
                column = name.removeprefix("writetime_")
                assert (key[0], "None", "None", column) in written or (*key, column) in written, (key, name)
            elif not (name == "l" and key in left):
                assert value == same, (key, name)


@pytest.mark.parametrize("seed", SEEDS)
def test_undone_and_undone_again(settings: Settings, session: Session, tables: Damaged, seed: int) -> None:
    tables.create()
    tables.write_phases(seed)
    before = Answers.of(session, tables.damaged)
    plan = make_plan(tables.lake, BAD)
    planned = cells(tables, plan)
    assert Counter(cell["kind"] for cell in planned) == Counter(plan.counts)
    apply_plan(settings, tables.lake, plan)
    assert_undone(Answers.of(session, tables.damaged), Answers.of(session, tables.wanted), plan, planned)
    tables.capture()
    # Nothing is left to undo.
    assert not make_plan(tables.lake, BAD).cells
    again = make_plan(tables.lake, plan.inverse)
    apply_plan(settings, tables.lake, again)
    found = Answers.of(session, tables.damaged)
    values = [{n: v for n, v in row.items() if not n.startswith("writetime")} for row in found.rows]
    assert values == [{n: v for n, v in row.items() if not n.startswith("writetime")} for row in before.rows]


def test_each_kind_of_damage_is_found(tables: Damaged) -> None:
    tables.create()
    tables.write_phases(0)
    plan = make_plan(tables.lake, BAD)
    assert all(plan.counts[kind] for kind in KINDS)
    assert plan.whole_rows


OF_TYPES = """(p text, q decimal, c timeuuid, s map<text, int> STATIC, u {ks}.place, m map<text, blob>, t set<double>,
 f frozen<{ks}.place>, n varint, PRIMARY KEY ((p, q), c))"""
ROW, OTHER = "50554d6e-29bb-11e5-b345-feff819cdc9f", "50554d6e-29bb-11e5-b345-feff819cdc9e"
OF_PARTITION = "p = 'a' AND q = 1.50"


def at(phase: int, n: int) -> str:
    return f"USING TIMESTAMP {START + phase * HOUR + n}"


GOOD_STATEMENTS = [
    f"INSERT INTO {{}} (p, q, c) VALUES ('a', 1.50, {ROW}) {at(0, 1)}",
    f"UPDATE {{}} {at(0, 2)} SET s = s + {{'one': 1}} WHERE {OF_PARTITION}",
    f"UPDATE {{}} {at(0, 3)} SET u.x = 1, u.y = '', m['k'] = 0x01, t = t + {{1.5}} WHERE {OF_PARTITION} AND c = {ROW}",
    f"UPDATE {{}} {at(0, 3)} SET f = {{x: 1}} WHERE {OF_PARTITION} AND c = {ROW}",
    f"UPDATE {{}} {at(0, 4)} AND TTL 500000 SET n = 123456789012345678901 WHERE {OF_PARTITION} AND c = {ROW}",
    f"UPDATE {{}} {at(0, 5)} SET n = 7 WHERE {OF_PARTITION} AND c = {OTHER}",
]
BAD_STATEMENTS = [
    f"DELETE FROM {{}} {at(1, 1)} WHERE {OF_PARTITION} AND c = {ROW}",
    f"UPDATE {{}} {at(1, 2)} SET s['one'] = 2, s['two'] = 3 WHERE {OF_PARTITION}",
    f"UPDATE {{}} {at(1, 3)} SET u.y = 'bad', m[''] = 0x, t = t + {{2.5}} WHERE {OF_PARTITION} AND c = {ROW}",
    # Without a marker, the row ends with its cells.
    f"INSERT INTO {{}} (p, q, c) VALUES ('a', 1.50, {OTHER}) {at(1, 4)}",
    f"INSERT INTO {{}} (p, q, c, n) VALUES ('b', 2, {ROW}, 1) {at(1, 5)}",
]
_OF_TYPES = "SELECT p, q, c, s, u, m, t, f, n, ttl(n) FROM {}"


def test_types_and_markers(settings: Settings, session: Session, tables: Damaged) -> None:
    keyspace = settings.cassandra.keyspace
    session.execute(f"CREATE TYPE {keyspace}.place (x int, y text)")
    tables.create(OF_TYPES.replace("{ks}", keyspace))
    for statement in GOOD_STATEMENTS:
        tables.write(statement)
    tables.capture()
    for statement in BAD_STATEMENTS:
        tables.write(statement, bad=True)
    tables.capture()
    opened = writetime.open_table(tables.damaged, settings)
    opened.apply_undo(opened.plan_undo(BAD.first, BAD.last).id)
    found, wanted = (list(session.execute(_OF_TYPES.format(t))) for t in (tables.damaged, tables.wanted))
    assert [row[:-1] for row in found] == [row[:-1] for row in wanted]
    assert [row.ttl_n is None for row in found] == [row.ttl_n is None for row in wanted]
    assert {row.q.as_tuple() for row in found} == {row.q.as_tuple() for row in wanted}
    # The marker that the interval added is gone a second later: so is the row, with its last cell.
    tables.write(f"DELETE n FROM {{}} WHERE {OF_PARTITION} AND c = {OTHER}")
    time.sleep(2)
    for table in (tables.damaged, tables.wanted):
        assert [str(row.c) for row in session.execute(f"SELECT c FROM {table}")] == [ROW]


def test_writes_after_the_plan_are_left(settings: Settings, session: Session, tables: Damaged) -> None:
    tables.create()
    tables.write_phases(1)
    plan = make_plan(tables.lake, BAD)
    rows = {tuple(cell["row"].values()) for cell in cells(tables, plan) if cell["kind"] != "written_since"}
    later = sorted(row for row in rows if None not in row)[::2]
    for k, c, d in later:
        tables.write(f"INSERT INTO {{}} (k, c, d, v, w) VALUES ({k}, {c}, '{d}', 7, 'later')")
        tables.write(f"DELETE m, e, l, f FROM {{}} WHERE k = {k} AND c = {c} AND d = '{d}'")
    apply_plan(settings, tables.lake, plan)
    found, wanted = by_key(Answers.of(session, tables.damaged)), by_key(Answers.of(session, tables.wanted))
    assert later
    for row in later:
        key = tuple(map(repr, row))
        assert [found[key][n] for n in "vwmelf"] == [wanted[key][n] for n in "vwmelf"]


def test_killed_and_run_again(settings: Settings, session: Session, tables: Damaged) -> None:
    tables.create()
    tables.write_phases(2)
    plan = make_plan(tables.lake, BAD)
    command = [sys.executable, "-m", "writetime", "undo", tables.damaged, "--apply", plan.id, "--rate", "4"]
    # Rows are written some at a time, so a kill falls between any two of them.
    for seconds in (1.5, 2.0, 2.5):
        process = subprocess.Popen(command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = run("undo", tables.damaged, "--apply", plan.id)
    assert done.exit_code == 0, done.output
    assert_undone(Answers.of(session, tables.damaged), Answers.of(session, tables.wanted), plan, cells(tables, plan))


def test_a_list_of_an_earlier_attempt_that_arrives_late(
    settings: Settings, session: Session, tables: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create("(k int PRIMARY KEY, l list<int>)")
    tables.write(f"INSERT INTO {{}} (k, l) VALUES (1, [1, 2, 3]) USING TIMESTAMP {START}")
    tables.write(f"UPDATE {{}} USING TIMESTAMP {START + 1} AND TTL 500000 SET l = l + [4, 5] WHERE k = 1")
    tables.capture()
    tables.write(f"INSERT INTO {{}} (k, l) VALUES (1, [6]) USING TIMESTAMP {START + HOUR}", bad=True)
    tables.capture()
    plan = make_plan(tables.lake, BAD)
    held: list[Any] = []
    write = applying._write

    def lost(session: Session, rows: Any, needed_by: str) -> None:
        del session, needed_by
        held.append(rows)
        raise WritetimeError("lost")

    monkeypatch.setattr(applying, "_write", lost)
    with pytest.raises(WritetimeError, match="lost"):
        apply_plan(settings, tables.lake, plan)
    monkeypatch.setattr(applying, "_write", write)
    tables.write("UPDATE {} SET l = l + [9] WHERE k = 1")
    apply_plan(settings, tables.lake, plan)
    write(session, held[0], "the test")
    # The element of another client is kept.
    assert session.execute(f"SELECT l FROM {tables.damaged}").one().l == [9, 1, 2, 3, 4, 5]


def test_keys_that_python_does_not_have(settings: Settings, session: Session, tables: Damaged) -> None:
    tables.create("(k date PRIMARY KEY, v int)")
    for phase, v in enumerate([1, 2]):
        tables.write(f"UPDATE {{}} USING TIMESTAMP {START + phase * HOUR} SET v = {v} WHERE k = 2150483648")
        tables.capture()
    planned = run("undo", tables.damaged, "--from", str(BAD.first), "--to", str(BAD.last))
    assert '{"k":"10183-' in planned.stdout
    run("undo", tables.damaged, "--apply", planned.stdout.rpartition(" ")[2].strip())
    assert session.execute(f"SELECT v FROM {tables.damaged}").one().v == 1


def test_equal_elements_of_other_forms(settings: Settings, session: Session, tables: Damaged) -> None:
    tables.create("(k int PRIMARY KEY, s set<decimal>, m map<decimal, int>)")
    tables.write(f"UPDATE {{}} USING TIMESTAMP {START} SET s = s + {{1.50}}, m[2.50] = 1 WHERE k = 1")
    tables.capture()
    tables.write(f"UPDATE {{}} USING TIMESTAMP {START + HOUR} SET s = s + {{1.5}}, m[2.5] = 2 WHERE k = 1", bad=True)
    tables.capture()
    apply_plan(settings, tables.lake, make_plan(tables.lake, BAD))
    found, wanted = (session.execute(f"SELECT s, m FROM {table}").one() for table in (tables.damaged, tables.wanted))
    assert str(found) == str(wanted)


def test_a_ttl_that_ends_before_the_plan_is_applied(settings: Settings, session: Session, tables: Damaged) -> None:
    tables.create("(k int PRIMARY KEY, v int, l list<int>)")
    tables.write(f"INSERT INTO {{}} (k, v, l) VALUES (1, 1, [1]) USING TIMESTAMP {START} AND TTL 20")
    tables.capture()
    tables.write(f"DELETE FROM {{}} USING TIMESTAMP {START + HOUR} WHERE k = 1", bad=True)
    tables.capture()
    plan = make_plan(tables.lake, BAD)
    assert plan.counts["deleted"] == 3
    time.sleep(21)
    apply_plan(settings, tables.lake, plan)
    assert not list(session.execute(f"SELECT * FROM {tables.damaged}"))


def test_chosen_rows_and_columns(settings: Settings, session: Session, tables: Damaged) -> None:
    tables.create("(k int PRIMARY KEY, v int, w int)")
    for k in range(4):
        tables.write(f"INSERT INTO {{}} (k, v, w) VALUES ({k}, 1, 1) USING TIMESTAMP {START}")
    tables.capture()
    for k in range(4):
        tables.write(f"UPDATE {{}} USING TIMESTAMP {START + HOUR} SET v = {k}, w = {k} WHERE k = {k}", bad=True)
    tables.capture()
    arguments = ["undo", tables.damaged, "--from", str(BAD.first), "--to", str(BAD.last)]
    planned = run(*arguments, "--where", "k >= 2 AND v > 1", "--columns", "v")
    assert planned.exit_code == 0, planned.output
    assert "2 overwritten" in planned.stdout
    plan_id = planned.stdout.rpartition(" ")[2].strip()
    applied = run("undo", tables.damaged, "--apply", plan_id)
    assert applied.stdout == f"{tables.damaged}: 2 rows written, and the plan {plan_id} is applied\n"
    rows = session.execute(f"SELECT k, v, w FROM {tables.damaged}")
    assert {row.k: (row.v, row.w) for row in rows} == {0: (0, 0), 1: (1, 1), 2: (1, 2), 3: (1, 3)}
    for wrong, message in [
        (["--columns", "z"], "has no static or regular column 'z'; known are v, w"),
        (["--columns", "k"], "has no static or regular column 'k'"),
        (["--where", "z = 1"], "--where 'z = 1'"),
    ]:
        assert message in run(*arguments, *wrong).stderr


def refusals(tables: Damaged) -> Iterator[tuple[list[str], str]]:
    interval = ["--from", str(BAD.first), "--to", str(BAD.last)]
    yield ["--from", str(BAD.last), "--to", str(BAD.first)], "--from must be before --to"
    yield ["--from", str(BAD.first), "--to", "2035-01-01"], "the lake has all writes up to"
    yield ["--from", str(BAD.first)], "name the interval with --from and --to"
    yield ["--apply", "17"], f"has no plan '17': `writetime undo {tables.damaged} --from T1 --to T2` makes one"
    yield ["--apply", "17", *interval], "--apply takes a plan as it is"


def test_refused(settings: Settings, session: Session, tables: Damaged) -> None:
    tables.create("(k int PRIMARY KEY, v int)")
    tables.write(f"INSERT INTO {{}} (k, v) VALUES (1, 1) USING TIMESTAMP {START + HOUR}")
    tables.capture()
    for arguments, message in refusals(tables):
        assert message in run("undo", tables.damaged, *arguments).stderr
    plan = make_plan(tables.lake, BAD)
    session.execute(f"ALTER TABLE {tables.damaged} WITH gc_grace_seconds = 0")
    with pytest.raises(WritetimeError, match="longer ago than gc_grace_seconds = 0"):
        apply_plan(settings, tables.lake, plan)
    session.execute(f"DROP TABLE {tables.damaged}")
    session.execute(f"CREATE TABLE {tables.damaged} (k int PRIMARY KEY, v int)")
    with pytest.raises(WritetimeError, match="was dropped and created again since the plan"):
        apply_plan(settings, tables.lake, plan)
    plan_file = tables.lake.storage.address + f"/undo/{plan.id}/undo.json"
    with open(plan_file, "w") as file:
        json.dump({}, file)
    assert "undo.json is damaged, so make a new plan" in run("undo", tables.damaged, "--apply", plan.id).stderr


def test_counters_are_refused(tables: Damaged) -> None:
    tables.create("(k int PRIMARY KEY, n counter)")
    tables.write("UPDATE {} SET n = n + 1 WHERE k = 1")
    tables.capture()
    with pytest.raises(WritetimeError, match="has the counter n: counters cannot be undone"):
        make_plan(tables.lake, BAD)

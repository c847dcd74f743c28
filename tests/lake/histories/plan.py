"""Plans, made from a seed. A run depends only on its plan, and a plan can be reduced."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.support.generate import UDTS, Generator, Places
from writetime.schema.table import TableSchema
from writetime.schema.types import Udt, quote_name

# The other sources of changes in the lake, in addition to the pending commit log and the round's snapshot.
_AGAIN = ["again", "replica", "old"]
_UPKEEP = ["fold", "fold", "compact", "refresh", "extend", "trim", "rebuild", "drop", "drop", "pack"]
_SOURCES = [["log"], ["log"], ["snapshot"], ["log", "snapshot"], ["some", "log"], ["some", "snapshot"], ["some"], []]
_TTLS = [1, 10, 100, 1000, 5000, 5100, 100_000]
# Seconds, from the run's beginning, at which writes are executed.
_SECONDS = [-5000, -100, -1, 0, 0, 0, 0, 1, 100]
# Default write times; the generator chooses its own for most statements, of a few values.
_TIMES = [1, 999, 1000, 1000, 1001, 2000, 1_700_000_000_000_000]
# Of later rounds later ones, so that there is a time between those of two rounds.
_ROUND_TIME = 1_800_000_000_000_000
_MOVES = [0, 0, 1, 10, 100, 1000, 5000, 100_000]


@dataclass(frozen=True)
class Item:
    """One thing that a round does, in this order of kinds: `alter` (CQL), `write` (CQL, with a second from the run's
    beginning and a default write time), `disk` (what nodetool does), `step` (what is done to the lake)."""

    kind: str
    text: str
    second: int = 0
    timestamp: int = 0


@dataclass(frozen=True)
class Round:
    """The statements between two comparisons, and the seconds by which the comparisons' clock moves."""

    items: tuple[Item, ...]
    seconds: int

    def of(self, kind: str) -> list[Item]:
        """Return the items of a kind."""
        return [item for item in self.items if item.kind == kind]


@dataclass(frozen=True)
class Plan:
    """One table, and its statements."""

    seed: int
    schema: TableSchema
    rounds: tuple[Round, ...]
    buckets: int
    histories: int

    def named(self, name: str) -> "Plan":
        """Return the same plan for a table of another name."""
        old = f"{self.schema.full_name} "

        def renamed(item: Item) -> Item:
            return replace(item, text=item.text.replace(old, f"{self.schema.keyspace}.{name} "))

        rounds = tuple(Round(tuple(map(renamed, r.items)), r.seconds) for r in self.rounds)
        return replace(self, schema=replace(self.schema, name=name), rounds=rounds)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"-- seed {self.seed}; {self.buckets} buckets; {self.histories} histories"
        yield f"{self.schema.create_statement()};"
        for number, each in enumerate(self.rounds):
            yield f"-- round {number}"
            for item in each.items:
                match item.kind:
                    case "write":
                        yield f"{item.text};  -- at second {item.second:+}, default write time {item.timestamp}"
                    case "alter":
                        yield f"{item.text};"
                    case _:
                        yield f"-- {item.kind}: {item.text}"
            yield f"-- compare {each.seconds} seconds later"


class _Generator(Generator):
    """Makes bounds of ranges that are often those of rows."""

    rows: list[list[str]]

    def bound(self, schema: TableSchema, n: int) -> str:
        return self.random.choice(self.rows)[n] if self.random.random() < 0.7 else super().bound(schema, n)


@dataclass
class _Maker:
    generator: _Generator
    schema: TableSchema
    places: list[Places]
    gone: dict[str, bool] = field(default_factory=dict)

    def alter(self, number: int) -> Iterator[Item]:
        """Drop a column, and sometimes add it again at once, or add a dropped one again. None is dropped twice."""
        r = self.generator.random
        if waiting := [n for n, is_gone in self.gone.items() if is_gone and self._may_return(n) and r.random() < 0.5]:
            yield self._add(waiting[0])
        written = self.schema.static + self.schema.regular
        # The database drops no non-frozen UDT.
        columns = [
            c for c in written if c.name not in self.gone and not (isinstance(c.type, Udt) and not c.type.frozen)
        ]
        if columns and r.random() < 0.2:
            column = r.choice(columns)
            self.gone[column.name] = True
            drop = f"ALTER TABLE {self.schema.full_name} DROP {quote_name(column.name)} USING TIMESTAMP"
            if not self._may_return(column.name) or r.random() < 0.5:
                # Later than all that was written: the database cannot read cells of a dropped column that are newer.
                yield Item("alter", f"{drop} {_ROUND_TIME + 1000 * number}")
            else:
                yield Item("alter", f"{drop} {r.choice([1000, 2000])}")
                yield self._add(column.name)

    def _may_return(self, name: str) -> bool:
        """The database keeps the types of dropped columns with tuples for UDTs, and takes only the same type again."""
        column = next(c for c in self.schema.static + self.schema.regular if c.name == name)
        return not any(udt in str(column.type) for udt in UDTS)

    def _add(self, name: str) -> Item:
        self.gone[name] = False
        column = next(c for c in self.schema.static + self.schema.regular if c.name == name)
        static = " static" if column in self.schema.static else ""
        return Item("alter", f"ALTER TABLE {self.schema.full_name} ADD {quote_name(name)} {column.type}{static}")

    def present(self) -> TableSchema:
        """The schema without the dropped columns."""
        static, regular = (
            tuple(c for c in columns if not self.gone.get(c.name))
            for columns in (self.schema.static, self.schema.regular)
        )
        return replace(self.schema, static=static, regular=regular)

    def round(self, number: int, writes: int, *, last: bool) -> Round:
        """Make a round of some statements of each history."""
        r = self.generator.random
        items = list(self.alter(number))
        schema = self.present()
        # The database keeps the time of a drop in milliseconds.
        times = [*_TIMES, _ROUND_TIME + 1000 * number + 1]
        for places in self.places:
            self.generator.rows = places[1]
            for text in self.generator.writes(schema, writes, places):
                items.append(Item("write", text, r.choice(_SECONDS), r.choice(times)))
        steps = [*r.choice(_SOURCES), *(s for s in _AGAIN if r.random() < 0.2), *r.sample(_UPKEEP, r.randint(0, 3))]
        r.shuffle(steps)
        if last:
            steps.append(r.choice(["log", "snapshot"]))
        disk = [name for name in ("flush", "compact") if r.random() < 0.3]
        disk += ["snapshot"] if "snapshot" in steps or r.random() < 0.2 else []
        items += [Item("disk", name) for name in disk]
        # Each step has its own seed, so that its choices stay the same when other steps are left out.
        items += [Item("step", f"{name} {r.randrange(1 << 16)}") for name in steps]
        return Round(tuple(items), r.choice(_MOVES))


def make_plan(seed: int, name: str, *, histories: int = 8, rounds: int = 4, writes: int = 7) -> Plan:
    """Make the plan of a seed: a table called `name`, `histories` of `rounds` times `writes` statements."""
    generator = _Generator(seed)
    generator._ttls = _TTLS
    schema = generator.schema(name)
    maker = _Maker(generator, schema, [generator.places(schema) for _ in range(histories)])
    made = tuple(maker.round(n, writes, last=n == rounds - 1) for n in range(rounds))
    return Plan(seed, schema, made, generator.random.choice([1, 1, 2, 4]), histories)


def cut(plan: Plan, keep: Sequence[bool]) -> Plan:
    """Return the plan with those of its items, counted through all rounds, that are to be kept."""
    flags = iter(keep)
    rounds = tuple(Round(tuple(i for i in r.items if next(flags)), r.seconds) for r in plan.rounds)
    return replace(plan, rounds=rounds)


def size(plan: Plan) -> int:
    """Return how many items a plan has."""
    return sum(len(r.items) for r in plan.rounds)

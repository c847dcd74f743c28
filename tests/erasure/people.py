"""A table of people with random values, some of which the database has deleted.

A person's key, text, static text and token are values that no other person has.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.support.bytes_left import found_in, texts_below
from tests.support.generate import SEED
from tests.support.lake_answers import view_rows
from tests.support.made import add, cell, settings_at
from tests.support.view_readers import by_query
from writetime.changes.position import AT, PARTITION_POSITION, STATIC_POSITION, position_encoder
from writetime.core.config import Settings
from writetime.erasure.certificate import erase
from writetime.erasure.places import in_places, place_of
from writetime.lake import state
from writetime.lake.table import LakeTable, create_table
from writetime.row_events.stream import extend
from writetime.schema.cql import parse_table
from writetime.schema.serialise import serialiser
from writetime.schema.table import TableSchema
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import token
from writetime.view.refreshing import refresh

SCHEMA = parse_table("CREATE TABLE shop.people (person text, n int, s text static, v text, PRIMARY KEY (person, n))")
DELETED_AT = 1_000
Change = dict[str, Any]


class Valued(Protocol):
    """What has values that may be found in files."""

    @property
    def values(self) -> list[str]: ...


@dataclass(frozen=True)
class Person:
    """A person, with one text per write."""

    name: str
    texts: tuple[str, ...]

    @property
    def key(self) -> bytes:
        return self.name.encode()

    @property
    def values(self) -> list[str]:
        """What may be found of the person in a file."""
        # A bound in a manifest of Iceberg has 16 characters.
        return [self.name, self.name[:16], *self.texts, str(token(self.key))]

    def _made(self) -> Change:
        return {"kind": "row", "person": self.name, "key": self.key, "token": token(self.key)}

    def write(self, number: int, at: int) -> Change:
        """A write of a text, to one of two rows."""
        place = [serialiser(Native("int"))(number % 2)]
        made = {"n": number % 2, "position": position_encoder(SCHEMA.clustering)(place, AT)}
        return self._made() | made | {"marker": {"write_time": at}, "v": cell(self.texts[number], at)}

    def static(self, number: int, at: int) -> Change:
        made = {"kind": "static", "position": STATIC_POSITION, "s": cell(self.texts[number], at)}
        return self._made() | made

    def deletion(self, at: int = DELETED_AT) -> Change:
        gone = {"tombstone": {"write_time": at, "deletion_time": at // 1_000_000}}
        return self._made() | gone | {"kind": "partition_tombstone", "position": PARTITION_POSITION}


def people(count: int, seed: int = 0) -> list[Person]:
    chooser = random.Random(SEED + seed)

    def text() -> str:
        return f"{chooser.getrandbits(96):024x}"

    return [Person(text(), tuple(text() for _ in range(8))) for _ in range(count)]


class Lake:
    """A lake with the table, its state, view and row events."""

    schema: TableSchema = SCHEMA

    def __init__(self, folder: Path, **lake: Any) -> None:
        self.folder = folder
        self.settings: Settings = settings_at(folder / "lake", **lake)
        self.table: LakeTable = create_table(self.settings, self.schema)
        self._number = 0

    def add(self, changes: Iterable[Change]) -> None:
        self._number += 1
        add(self.table, changes, self._number, self.schema)

    def follow(self) -> None:
        extend(self.table)
        refresh(self.settings, self.table)

    def fill(self, everyone: Sequence[Person], deleted: Sequence[Person]) -> None:
        """Write all texts, in batches that are folded, shown and packed in part; and delete some people."""
        for number in range(6):
            self.add([person.write(number, 10 * number + 1) for person in everyone])
            if number % 2:
                self.add([person.static(6 + number // 4, 10 * number + 2) for person in everyone])
            self.follow()
            if number in {1, 4}:
                state.fold(self.table)
        state.compact(self.table)
        self.add([person.deletion() for person in deleted])
        self.follow()

    def erase(self, some: Sequence[Person]) -> dict[str, Any]:
        return self.erase_places(*(place_of(person.key) for person in some))

    def erase_places(self, *places: tuple[bytes, bytes, bytes]) -> dict[str, Any]:
        """Erase results of `place_of`."""
        return erase(self.settings, self.table, in_places(places), kafka=False)

    def left_of(self, some: Sequence[Valued]) -> dict[str, list[str]]:
        """The values of people that files of the lake or the cache have, with these files."""
        return values_left(self.folder, some)

    def events_of(self, some: Sequence[Person]) -> list[dict[str, Any]]:
        """The events of people, from the files."""
        read = self.table.row_events.load().table.to_pyarrow_table().to_pylist()
        keys = {person.key for person in some}
        return sorted((event for event in read if event["key"] in keys), key=lambda e: (e["sequence"], e["event_id"]))

    def shown(self) -> list[str]:
        """The rows of the compacted view, as another reader finds them."""
        found = by_query(self.table.view.storage.address).drop_columns(["token_bucket"])
        return sorted(map(str, view_rows([found])))


def values_left(folder: Path, some: Sequence[Valued]) -> dict[str, list[str]]:
    """The values of people that files below a folder have, with these files."""
    values = [value for person in some for value in person.values]
    return {value: files for value, files in found_in(texts_below(folder), values).items() if files}


def all_values(some: Sequence[Valued]) -> set[str]:
    return {value for person in some for value in person.values}

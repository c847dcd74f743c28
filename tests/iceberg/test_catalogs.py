"""The tables of the lake in an Iceberg catalog: REST, with the server of the Iceberg project, and SQL.

Oracle: pyiceberg reads the tables through the catalog, and delta-rs reads the Delta tables.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.support.iceberg_tables import AS_OF, MirroredTable
from tests.support.rest_catalog import running_rest_catalog
from writetime.core.errors import Transient, WritetimeError
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.table_changes import TableChange
from writetime.iceberg import publication
from writetime.iceberg.catalogs import NAME, CatalogEntry
from writetime.iceberg.metadata_files import newest
from writetime.iceberg.publication import IcebergTable
from writetime.servers.process import free_port

ITEMS = ("shop", "items")


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_rest_catalog(tmp_path_factory.mktemp("rest")) as catalog:
        yield catalog.properties


@pytest.fixture(params=["rest", "sql"])
def properties(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    if request.param == "rest":
        return request.getfixturevalue("rest")
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}


@pytest.fixture
def catalog(properties: dict[str, str]) -> Iterator[Catalog]:
    opened = load_catalog(NAME, **properties)
    yield opened
    if opened.table_exists(ITEMS):
        opened.drop_table(ITEMS)


def entered(table: MirroredTable, properties: dict[str, str]) -> IcebergTable:
    """The Iceberg table as another process opens it, which registers it."""
    return IcebergTable(BucketedTable(table.storage), AS_OF, CatalogEntry(properties, ITEMS))


def ids(catalog: Catalog, snapshot: int | None = None) -> list[int]:
    return sorted(catalog.load_table(ITEMS).scan(snapshot_id=snapshot).to_arrow()["id"].to_pylist())


def test_a_catalog_has_each_snapshot(tmp_path: Path, properties: dict[str, str], catalog: Catalog) -> None:
    table = MirroredTable.at(tmp_path)
    table.iceberg = entered(table, properties)
    wanted = []
    with patch.object(publication, "MOST_SNAPSHOTS", 4):
        for number in range(6):
            if number == 3:
                table.delta.add_fields(pa.schema([("late", pa.string())]))
                table.iceberg = entered(table, properties)
            table.commit(removes=number % 2)
            table.iceberg.publish()
            table.iceberg.register()
            assert ids(catalog) == table.wanted()
            wanted.append(table.wanted())
    found = catalog.load_table(ITEMS).metadata
    assert found == table.published().metadata.model_copy(
        update={"metadata_log": found.metadata_log, "last_updated_ms": found.last_updated_ms}
    )
    assert [ids(catalog, each.snapshot_id) for each in found.snapshots] == wanted[-4:]


def test_what_a_catalog_missed_is_repaired(tmp_path: Path, properties: dict[str, str], catalog: Catalog) -> None:
    table = MirroredTable.at(tmp_path)
    first = entered(table, properties)
    for registers in (True, False, False, True):
        table.commit()
        first.publish()
        if registers:
            first.register()
    assert ids(catalog) == table.wanted()
    # Another program is first, and then this one, with an older version and an older state.
    table.commit()
    first.publish()
    table.commit()
    second = entered(table, properties)
    second.publish()
    second.register()
    first.register()
    assert ids(catalog) == table.wanted()
    table.commit()
    first.publish()
    first.register()
    assert ids(catalog) == table.wanted()


def test_a_catalog_that_comes_late_has_the_schema_of_each_snapshot(
    tmp_path: Path, properties: dict[str, str], catalog: Catalog
) -> None:
    """A REST catalog numbers the schemas itself. It keeps none that no snapshot has."""
    table = MirroredTable.at(tmp_path)
    with patch.object(publication, "MOST_SNAPSHOTS", 3):
        for number in range(10):
            if number == 5:
                table.iceberg = entered(table, properties)
            for part in range(2):
                table.delta.add_fields(pa.schema([(f"late_{number}_{part}", pa.string())]))
                table.iceberg.publish()
            table.commit()
            table.iceberg.publish()
            table.iceberg.register()
            if number < 5:
                continue
            ours, theirs = table.published(), catalog.load_table(ITEMS)
            assert len(theirs.schemas()) == 3
            assert theirs.schema().fields == ours.schema().fields
            for each in ours.metadata.snapshots:
                fields = [t.scan(snapshot_id=each.snapshot_id).projection().fields for t in (theirs, ours)]
                assert fields[0] == fields[1]
                assert ids(catalog, each.snapshot_id) == table.ids(each.snapshot_id)


def test_a_sweep_leaves_the_table_to_the_catalog(tmp_path: Path, properties: dict[str, str], catalog: Catalog) -> None:
    """A REST catalog keeps its metadata in the folder of ours. It deletes what it no longer needs."""
    table = MirroredTable.at(tmp_path)
    with patch.object(publication, "EARLIER_VERSIONS", 3):
        table.iceberg = entered(table, properties)
        for _ in range(12):
            table.commit()
            table.iceberg.publish()
            table.iceberg.register()
        table.iceberg.sweep(2**40)
    assert ids(catalog) == table.wanted()
    own = f"v{newest(table.storage)}.metadata.json"
    found = [path.name for path in Path(table.storage.address, "metadata").glob("*.metadata.json")]
    assert own in found
    assert len(found) <= 2 * (3 + 1)


def test_a_table_that_begins_again_replaces_the_other(
    tmp_path: Path, properties: dict[str, str], catalog: Catalog
) -> None:
    table = MirroredTable.at(tmp_path)
    iceberg = entered(table, properties)
    table.commit()
    iceberg.publish()
    iceberg.register()
    before = table.delta.load()
    fields = pa.schema([("id", pa.int64()), ("text", pa.binary())])
    table.delta.commit(before, TableChange(before.files, fields=fields), {AS_OF: 10**15 + 10**9})
    iceberg.publish()
    iceberg.register()
    assert ids(catalog) == []


def test_a_table_leaves_the_catalog(tmp_path: Path, properties: dict[str, str], catalog: Catalog) -> None:
    table = MirroredTable.at(tmp_path)
    iceberg = entered(table, properties)
    assert iceberg.registered_name() is None
    iceberg.unregister()
    table.commit()
    iceberg.publish()
    iceberg.register()
    again = entered(table, properties)
    assert again.registered_name() == "shop.items"
    again.unregister()
    assert again.registered_name() is None
    assert not catalog.table_exists(ITEMS)
    # Its files stay.
    assert table.ids() == table.wanted()


def test_another_table_of_the_name_stays(tmp_path: Path, properties: dict[str, str], catalog: Catalog) -> None:
    theirs, ours = MirroredTable.at(tmp_path / "theirs"), MirroredTable.at(tmp_path / "ours")
    for table in (theirs, ours):
        table.commit()
    first, second = entered(theirs, properties), entered(ours, properties)
    first.publish()
    first.register()
    second.publish()
    with pytest.raises(
        WritetimeError, match=r"does not register shop\.items: it has another table shop\.items at file:"
    ):
        second.register()
    assert second.registered_name() is None
    second.unregister()
    assert catalog.load_table(ITEMS).location() == theirs.published().location()


def test_a_catalog_that_does_not_answer_is_tried_later(tmp_path: Path) -> None:
    table, calls = MirroredTable.at(tmp_path), 0
    properties = {"type": "rest", "uri": f"http://127.0.0.1:{free_port()}"}
    iceberg = entered(table, properties)
    register = CatalogEntry.register

    def counted(*args: Any) -> None:
        nonlocal calls
        calls += 1
        register(*args)

    table.commit()
    iceberg.publish()
    assert table.ids() == table.wanted()
    with patch.object(CatalogEntry, "register", counted):
        with pytest.raises(Transient, match=r"the Iceberg catalog does not register shop\.items"):
            iceberg.register(at_once=False)
        iceberg.register(at_once=False)
        assert calls == 1
        assert not iceberg.is_published
        with pytest.raises(Transient):
            iceberg.register()

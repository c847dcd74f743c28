"""The tables of the lake in an Iceberg catalog: REST, with the server of the Iceberg project, and SQL.

Oracle: pyiceberg reads the tables through the catalog, and delta-rs reads the Delta tables.
"""

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog

from tests.support.iceberg_tables import AS_OF, MirroredTable, published
from tests.support.rest_catalog import running_rest_catalog
from writetime.core.errors import Transient, WritetimeError
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.parquet import write_file
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.iceberg import publication
from writetime.iceberg.catalogs import NAME, CatalogEntry
from writetime.iceberg.metadata_files import is_own, newest
from writetime.iceberg.publication import IcebergTable
from writetime.schema.mapping import NATIVES, arrow_type
from writetime.schema.types import Native, Udt, parse_cql
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


_ADDRESS = Udt("shop", "address", (("street", Native("text")), ("zip", Native("int"))))
CQL_TYPES = [
    *NATIVES,
    "frozen<list<tinyint>>",
    "frozen<set<uuid>>",
    "frozen<map<text, smallint>>",
    "frozen<map<timestamp, blob>>",
    "frozen<map<double, int>>",
    "frozen<map<frozen<map<text, int>>, frozen<list<duration>>>>",
    "frozen<tuple<int, timestamp>>",
    "frozen<address>",
    "frozen<list<frozen<map<date, frozen<address>>>>>",
    "vector<float, 3>",
]
_SAMPLES = {
    pa.binary(): b"\0",
    pa.bool_(): True,
    pa.date32(): date(2026, 11, 30),
    pa.float32(): 0.5,
    pa.float64(): -0.25,
    pa.string(): "é",
    pa.timestamp("us", "UTC"): datetime(2026, 11, 30, 1, 2, 3, 4000, UTC),
}


def sample(kind: pa.DataType) -> Any:
    """A value of an Arrow type."""
    if pa.types.is_struct(kind):
        return {field.name: sample(field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(sample(kind.key_type), sample(kind.item_type))]
    return [sample(kind.value_type)] if pa.types.is_list(kind) else _SAMPLES.get(kind, 7)


@pytest.mark.parametrize("cql_type", CQL_TYPES)
def test_a_catalog_takes_each_type(tmp_path: Path, properties: dict[str, str], catalog: Catalog, cql_type: str) -> None:
    kind = arrow_type(Native(cql_type) if cql_type in NATIVES else parse_cql(cql_type, {"address": _ADDRESS}))
    rows = pa.table({"value": pa.array([sample(kind), None], kind)})
    delta = BucketedTable(Storage(str(tmp_path / "shop.items" / "view")))
    delta.create(rows.schema, 4, {})
    delta.commit(delta.load(), TableChange(add=[write_file(delta.storage, rows, 0, None)]), {AS_OF: 1})
    iceberg = IcebergTable(delta, AS_OF, CatalogEntry(properties, ITEMS))
    iceberg.publish()
    iceberg.register()
    opened = catalog.load_table(ITEMS)
    assert opened.schema() == published(delta.storage.address).schema()
    # pyiceberg reads a null list of structs as an empty one. If this fails, update docs/engines.md.
    is_lost = pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)
    assert opened.scan().to_arrow()["value"].to_pylist() == [rows["value"][0].as_py(), [] if is_lost else None]


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


def get_other_fields(table: MirroredTable, _: Path) -> None:
    before = table.delta.load()
    fields = pa.schema([("id", pa.int64()), ("text", pa.binary())])
    table.delta.commit(before, TableChange(before.files, fields=fields), {AS_OF: 10**15 + 10**9})


def get_vectors(table: MirroredTable, _: Path) -> None:
    table.commit()


def lose_commits(table: MirroredTable, copy: Path) -> None:
    log = Path(table.storage.address, "_delta_log")
    shutil.copytree(log, copy)
    table.commit(vectors=False)
    publish_and_register(table)
    shutil.rmtree(log)
    shutil.copytree(copy, log)
    table.delta = BucketedTable(table.storage)


@pytest.mark.parametrize("change", [get_other_fields, get_vectors, lose_commits])
def test_a_table_without_earlier_snapshots_is_never_missing(
    tmp_path: Path, properties: dict[str, str], catalog: Catalog, change: Callable[[MirroredTable, Path], None]
) -> None:
    """The catalog gets the change as one commit."""
    table = MirroredTable.at(tmp_path)
    table.iceberg = entered(table, properties)
    for _ in range(2):
        table.commit(vectors=False)
        publish_and_register(table)
    change(table, tmp_path / "copy")
    before = catalog.load_table(ITEMS).metadata.snapshots[-1]
    with patch.object(RestCatalog, "drop_table", side_effect=AssertionError("it is missing")):
        table.iceberg = entered(table, properties)
        publish_and_register(table)
    assert ids(catalog) == table.wanted()
    ours, theirs = table.published().metadata, catalog.load_table(ITEMS).metadata
    assert [each.timestamp_ms > before.timestamp_ms for each in theirs.snapshots] == [True]
    assert (theirs.snapshots, theirs.format_version) == (ours.snapshots, ours.format_version)
    if change is not get_other_fields:
        table.commit()
        publish_and_register(table)
        assert ids(catalog) == table.wanted()


def test_a_table_whose_files_were_erased(tmp_path: Path, properties: dict[str, str], catalog: Catalog) -> None:
    """No metadata of the table before is left, neither ours nor the catalog's, and the next snapshot follows."""
    table = MirroredTable.at(tmp_path)
    first = entered(table, properties)
    for _ in range(3):
        table.commit(removes=1)
        first.publish()
        first.register()
    before = catalog.load_table(ITEMS).metadata
    begun = entered(table, properties).begin_again()
    found = catalog.load_table(ITEMS).metadata
    assert begun == {"location": found.location, "table_uuid": str(found.table_uuid), "catalog": "shop.items"}
    assert found.table_uuid != before.table_uuid
    assert len(found.snapshots) == 1
    assert ids(catalog) == table.wanted()
    lists = {each.manifest_list.rpartition("/")[2] for each in before.snapshots}
    for path in Path(table.storage.address, "metadata").iterdir():
        assert str(before.table_uuid).encode() not in path.read_bytes()
        assert path.name not in lists
    # A program that has followed the table before.
    table.commit()
    first.publish()
    first.register()
    assert ids(catalog) == table.wanted()
    assert len(catalog.load_table(ITEMS).metadata.snapshots) == 2


@pytest.mark.parametrize("restarts", [False, True])
def test_a_catalog_that_does_not_answer_names_files_that_exist(
    tmp_path: Path, properties: dict[str, str], catalog: Catalog, *, restarts: bool
) -> None:
    table, fault = MirroredTable.at(tmp_path), Transient("the catalog does not answer")
    with patch.multiple(publication, MOST_SNAPSHOTS=2, EARLIER_VERSIONS=2):
        table.iceberg = entered(table, properties)
        table.commit()
        publish_and_register(table)
        wanted = table.wanted()
        with patch.object(CatalogEntry, "register", side_effect=fault):
            for number in range(8):
                if restarts and number == 1:
                    table.iceberg = entered(table, properties)
                table.commit(removes=2)
                with pytest.raises(Transient):
                    publish_and_register(table)
                assert table.iceberg.sweep(2**40) == []
                assert ids(catalog) == wanted
        publish_and_register(table)
        assert ids(catalog) == table.wanted()
        table.commit()
        publish_and_register(table)
        assert table.iceberg.sweep(2**40) == []
    assert len([*Path(table.storage.address, "metadata").glob("v*.metadata.json")]) == 3


def publish_and_register(table: MirroredTable) -> None:
    table.iceberg.publish()
    table.iceberg.register()


def test_the_files_that_a_catalog_names_are_not_kept_for_ever(tmp_path: Path) -> None:
    table = MirroredTable.at(tmp_path)
    with patch.multiple(publication, MOST_SNAPSHOTS=2, EARLIER_VERSIONS=2, KEPT_SECONDS=0):
        table.iceberg = entered(table, {"type": "rest", "uri": f"http://127.0.0.1:{free_port()}"})
        for _ in range(6):
            table.commit(removes=2)
            with pytest.raises(Transient):
                publish_and_register(table)
    found = {path.name for path in Path(table.storage.address, "metadata").glob("v*.metadata.json")}
    assert found == {f"v{number}.metadata.json" for number in (4, 5, 6)}


def test_a_catalog_follows_a_table_that_begins_again(
    tmp_path: Path, properties: dict[str, str], catalog: Catalog
) -> None:
    """After its metadata was deleted, its versions have the first numbers again."""
    table = MirroredTable.at(tmp_path)
    table.iceberg = entered(table, properties)
    for _ in range(3):
        table.commit()
        publish_and_register(table)
    # That of a REST catalog stays.
    for path in Path(table.storage.address, "metadata").iterdir():
        if is_own(path.name) or path.name == "version-hint.text":
            path.unlink()
    table.iceberg = entered(table, properties)
    publish_and_register(table)
    assert ids(catalog) == table.wanted()


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
        assert not iceberg.is_registered
        with pytest.raises(Transient):
            iceberg.register()

"""Iceberg tables in an object store with S3's protocol.

Oracle: pyiceberg reads the Iceberg table in the store, and delta-rs reads the Delta table.
"""

import pytest
from pyiceberg.table import StaticTable

from tests.support.iceberg_tables import MirroredTable
from tests.support.object_store import BUCKET, ObjectStore
from writetime.delta.storage import Storage
from writetime.iceberg.metadata_files import newest

pytestmark = pytest.mark.long


def test_an_object_store_has_each_snapshot(store: ObjectStore) -> None:
    lake = Storage(f"s3://{BUCKET}/lake", store.options)
    table = MirroredTable(lake.folder("shop.items").folder("view"))
    for number in range(5):
        table.commit(removes=number % 2)
        # Of two programs, each takes its turns.
        (table.iceberg if number < 3 else table.again()).publish()
        assert _ids(store, table) == table.wanted()
    assert newest(table.storage) == 5
    table.iceberg.sweep(2**40)
    assert _ids(store, table) == table.wanted()


def _ids(store: ObjectStore, table: MirroredTable) -> list[int]:
    options = {
        "s3.endpoint": store.endpoint,
        "s3.access-key-id": store.options["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": store.options["AWS_SECRET_ACCESS_KEY"],
        "s3.region": store.options["AWS_REGION"],
    }
    address = f"{table.storage.address}/metadata/v{newest(table.storage)}.metadata.json"
    return sorted(StaticTable.from_metadata(address, options).scan().to_arrow()["id"].to_pylist())

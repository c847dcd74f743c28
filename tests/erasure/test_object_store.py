"""Partitions are erased from a lake in an object store.

Oracle: a search of copies of all objects by other programs, and the rows from before.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from tests.erasure.people import Lake, all_values, people, values_left
from tests.support.lake_answers import view_rows
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.servers import running
from writetime.lake import views

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with running(ObjectStore(tmp_path_factory.mktemp("s3"))) as server:
        yield server


def test_no_byte_is_left_in_an_object_store(store: ObjectStore, tmp_path: Path) -> None:
    everyone = people(6)
    gone, others = everyone[:2], everyone[2:]
    lake = Lake(tmp_path, path=f"s3://{BUCKET}/erased", storage_options=store.options, iceberg=True)
    lake.fill(everyone, gone)
    before = view_rows(views.virtual(lake.table)), lake.events_of(others)
    fs.copy_files(f"{BUCKET}/erased", str(tmp_path / "before"), source_filesystem=store.filesystem())
    assert values_left(tmp_path / "before", gone).keys() == all_values(gone)
    lake.erase(gone)
    fs.copy_files(f"{BUCKET}/erased", str(tmp_path / "after"), source_filesystem=store.filesystem())
    assert values_left(tmp_path / "after", gone) == {}
    assert values_left(tmp_path / "after", others).keys() == all_values(others)
    assert (view_rows(views.virtual(lake.table)), lake.events_of(others)) == before
    # The decoded files of this machine.
    assert values_left(tmp_path / "lake.cache", gone) == {}

"""The lake at an address, as in object stores: the same client writes the files and the commits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest

from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, rewrite, settings_at, write
from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.delta.object_store import ObjectStore
from writetime.delta.storage import Storage, lake_storage
from writetime.lake import retention, state, views
from writetime.lake.table import create_table, open_table
from writetime.view.refreshing import refresh


def test_a_lake_at_an_address(tmp_path: Path) -> None:
    settings = settings_at(tmp_path).model_copy(update={"lake": config.Lake(path=f"file://{tmp_path}/lake", buckets=2)})
    table = create_table(settings, SCHEMA)
    for number in range(5):
        add(table, [write(i, number, 5 + number, v="x" * number) for i in range(20)], number)
        state.fold(table)
    rows = view_rows(views.virtual(table))
    assert len(rows) == 100
    state.compact(table)
    rewrite(table)
    retention.vacuum(table, 0)
    assert view_rows(views.virtual(open_table(settings, "shop.items"))) == rows
    # The same tables by a path of the local disk.
    assert view_rows(views.virtual(open_table(settings_at(tmp_path / "lake"), "shop.items"))) == rows


def test_a_process_opens_a_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all tables: to open one costs more than a request."""
    opened: list[str] = []
    first, second = ObjectStore.__init__, obstore.store.from_url

    def files(self: ObjectStore, address: str, *rest: Any) -> None:
        opened.append(f"files of {address}")
        first(self, address, *rest)

    def commits(address: str, **rest: Any) -> Any:
        opened.append(f"commits of {address}")
        return second(address, **rest)

    monkeypatch.setattr(ObjectStore, "__init__", files)
    monkeypatch.setattr(obstore.store, "from_url", commits)
    # Like the bucket of a store, the folder exists.
    (tmp_path / "lake").mkdir()
    address = f"file://{tmp_path}/lake"
    settings = settings_at(tmp_path).model_copy(update={"lake": config.Lake(path=address, buckets=2)})
    for name in ("items", "others"):
        table = create_table(settings, replace(SCHEMA, name=name))
        add(table, [write(i, 1, 5, v="x") for i in range(20)], 1)
        state.fold(table)
        assert refresh(settings, table).rows == 20
        assert len(view_rows(views.virtual(open_table(settings, table.name)))) == 20
    assert sorted(opened) == [f"commits of {address}", f"files of {address}"]


def test_options_are_secret_and_reach_the_store() -> None:
    lake = config.Lake.model_validate(
        {"path": "s3a://bucket/lake/", "storage_options": {"AWS_SECRET_ACCESS_KEY": "x17"}}
    )
    storage = lake_storage(config.load().model_copy(update={"lake": lake}))
    assert storage == Storage("s3a://bucket/lake", {"AWS_SECRET_ACCESS_KEY": "x17"})
    assert "x17" not in f"{lake!r} {storage!r}"
    assert storage.folder("a.b").folder("view").address == "s3a://bucket/lake/a.b/view"


def test_a_store_that_cannot_be_reached(tmp_path: Path) -> None:
    settings = settings_at(tmp_path).model_copy(
        # The settings refuse it.
        update={"lake": config.Lake().model_copy(update={"path": "unheard://bucket/lake"})}
    )
    with pytest.raises(WritetimeError, match=r"unheard://bucket/lake/shop\.items"):
        open_table(settings, "shop.items")

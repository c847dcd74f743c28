"""The rows of the lake that are read again; no server is needed."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.made import add, new_table, write
from writetime.core.arrow import pc
from writetime.lake import buckets, state
from writetime.lake.buckets import ALL
from writetime.lake.cache import Cache
from writetime.lake.views import bucket_views
from writetime.verify.comparison import _lake_state


@pytest.mark.parametrize("count", [4, 32])
def test_a_token_is_read_from_the_files_of_its_bucket(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many buckets the table has."""
    table = new_table(tmp_path, buckets=count)
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "FEW_ROWS", 0)
        add(table, [write(i, 1, 1, v="a") for i in range(200)], 1)
        state.fold(table)
    for number in (2, 3):
        add(table, [write(i, 1, number, w=number) for i in range(50)], number)
    read: list[int] = []
    between = Cache.between

    def noted(cache: Cache, storage: Any, file: Any, *tokens: int) -> Any:
        read.append(file.bucket)
        return between(cache, storage, file, *tokens)

    monkeypatch.setattr(Cache, "between", noted)
    tokens = sorted(write(i, 1, 1)["token"] for i in range(40, 80))
    rows, _, _ = _lake_state(bucket_views(table), table.schema(), [*tokens, tokens[-1] + 1])
    assert rows["token"].to_pylist() == tokens
    assert pc.sum(rows["w"].combine_chunks().field("value")).as_py() == 30
    # A level, and the two files of all buckets.
    assert len([bucket for bucket in read if bucket != ALL]) <= len(tokens) + 1
    assert read.count(ALL) == 2 * (len(tokens) + 1)

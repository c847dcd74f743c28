"""Buckets are token ranges, and their number never changes silently."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.made import SCHEMA, new_table, settings_at
from writetime.core.errors import WritetimeError
from writetime.delta.buckets import buckets_of, buckets_of_share, check_buckets, token_range
from writetime.delta.parquet import split_by_bucket
from writetime.delta.versions import BUCKETS
from writetime.lake.table import create_table, open_table


@pytest.mark.parametrize("buckets", [1, 2, 16, 65536])
def test_a_bucket_is_a_range(buckets: int) -> None:
    edges = [edge for b in {0, 1, buckets // 2, buckets - 1} if b < buckets for edge in token_range(b, buckets)]
    some = random.Random(1)
    tokens = [*edges, 0, -1, *(some.randint(-(1 << 63), (1 << 63) - 1) for _ in range(99))]
    for token, bucket in zip(tokens, buckets_of(pa.array(tokens, pa.int64()), buckets).tolist(), strict=True):
        first, last = token_range(bucket, buckets)
        assert first <= token <= last
    assert token_range(0, buckets)[0] == -(1 << 63)
    assert token_range(buckets - 1, buckets)[1] == (1 << 63) - 1


@pytest.mark.parametrize("buckets", [1, 2, 16, 64])
def test_shares(buckets: int) -> None:
    shares = [buckets_of_share(share, 16, buckets) for share in range(16)]
    assert [bucket for share in shares for bucket in share] == list(range(buckets))
    assert {len(share) for share in shares} <= {0, 1, buckets // 16}


@pytest.mark.parametrize("buckets", [1, 4, 1024])
@pytest.mark.parametrize("ordered", [False, True])
def test_rows_are_split_by_bucket(buckets: int, *, ordered: bool) -> None:
    some = random.Random(buckets)
    tokens = [some.randint(-(1 << 63), (1 << 63) - 1) for _ in range(2000)]
    if ordered:
        tokens.sort()
    cells = [{"value": i if i % 7 else None} if i % 3 else None for i in range(2000)]
    table = pa.table({"token": pa.array(tokens, pa.int64()), "number": range(2000), "cell": cells})
    table = pa.concat_tables([table.slice(0, 900), table.slice(900, 700), table.slice(1600)])
    wanted: dict[int, list[dict[str, Any]]] = {}
    for bucket, row in zip(buckets_of(table["token"], buckets).tolist(), table.to_pylist(), strict=True):
        wanted.setdefault(bucket, []).append(row)
    assert {bucket: part.to_pylist() for bucket, part in split_by_bucket(table, buckets)} == wanted


@pytest.mark.parametrize("buckets", [0, 3, -4, 1 << 17])
def test_other_numbers_are_refused(buckets: int) -> None:
    with pytest.raises(WritetimeError, match="a power of two"):
        check_buckets(buckets)


def test_the_number_is_fixed(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=4)
    assert open_table(settings_at(tmp_path, buckets=8), "shop.items").buckets == 4
    # The setting is for new tables.
    assert create_table(settings_at(tmp_path, buckets=8), SCHEMA).buckets == 4
    delta = DeltaTable(table.state.storage.address)
    delta.alter.set_table_properties({BUCKETS: "16"}, raise_if_not_exists=False)
    with pytest.raises(WritetimeError, match="the number of buckets never changes"):
        open_table(settings_at(tmp_path), "shop.items")


def test_a_missing_table(tmp_path: Path) -> None:
    with pytest.raises(WritetimeError, match="writetime backfill"):
        open_table(settings_at(tmp_path), "shop.none")

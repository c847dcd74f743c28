"""The summary that `writetime verify` prints. No server is needed."""

import pytest

from writetime.cli.verify import summary


@pytest.mark.parametrize(
    ("apart", "remaining", "found"),
    [
        (0, (0, 0, 0), "4 rows: 0 differ, 0 more lag behind"),
        (1, (0, 1, 0), "4 rows: 0 differ, 1 more lag behind"),
        (1, (1, 0, 9), "4 rows: 1 differ, 0 more lag behind; not read again: 9 more partitions"),
        # Otherwise "3 rows in the database and 4 in the lake: 0 differ".
        (1, (0, 0, 0), "4 rows at the first read; at the last: 0 differ, 0 more lag behind"),
        (5, (1, 3, 0), "4 rows at the first read; at the last: 1 differ, 3 more lag behind"),
    ],
)
def test_numbers_of_rows_do_not_contradict_the_result(apart: int, remaining: tuple[int, int, int], found: str) -> None:
    assert summary("shop.orders: 4 rows", apart, *remaining) == f"shop.orders: {found}"

"""The answer of a query for rows of a log, without a database."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from writetime.scylla_cdc import pieces


class Answer:
    """The pages of an answer, in place of `Reading`."""

    def __init__(self, pages: Sequence[pa.RecordBatch]) -> None:
        """Store the pages, of which there is at least one."""
        self._pages = pages

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._pages)

    def only_page(self) -> pa.RecordBatch | None:
        """Return the rows as one page, if one is enough."""
        rows = sum(page.num_rows for page in self._pages)
        return pa.concat_batches(self._pages) if rows <= pieces.PAGE_ROWS else None

"""Compares postimages with the changes of the same writes, while both are read from the log.

The agent does not have all changes of a row, but only those of the windows that it reads. So it compares the cells that
each write set with the write's own postimage. It reads images in any case, because they are ordinary rows of the log.
"""

from collections import Counter
from datetime import datetime

import numpy as np
import pyarrow as pa

from writetime.core.arrow import pc
from writetime.core.instants import instant_text
from writetime.schema.table import TableSchema
from writetime.scylla_cdc import log as L
from writetime.scylla_cdc.deltas import Deltas
from writetime.scylla_cdc.findings import IMAGE_DISAGREES, IMAGE_NOT_COMPARED
from writetime.scylla_cdc.images import Disagreement, Images, contradictions

# The most findings of one read that are described. All are counted.
_DESCRIBED = 10


class ImageCheck:
    """Describes the findings of comparing images. The numbers are in the findings of the log."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """Descriptions of the first findings."""

    def disagreement(self, table: TableSchema, found: Disagreement) -> None:
        """Describe a disagreement, without values and keys, because these may be confidential."""
        self._describe(
            f"the {found.kind} of a write of {instant_text(found.write_time)} in stream 0x{found.stream.hex()} has "
            f"another value of column {found.column} than the changes of the log of {table.full_name}: compare the "
            f"table with writetime verify {table.full_name}"
        )

    def fault(self, table: TableSchema, page: pa.RecordBatch, images: np.ndarray, reason: Exception) -> None:
        """Describe why images could not be compared."""
        stream = page[L.STREAM][int(np.flatnonzero(images)[0])].as_py()
        self._describe(
            f"{images.sum()} postimages, the first in stream 0x{stream.hex()}, of the log of {table.full_name} could "
            f"not be compared with its changes, which are published: {type(reason).__name__}: {reason}"
        )

    def _describe(self, text: str) -> None:
        if len(self.texts) < _DESCRIBED:
            self.texts.append(text)


class CheckedDeltas:
    """Converts log rows to changes like `Deltas`, and compares them with the images among the rows."""

    def __init__(
        self, deltas: Deltas, images: Images, check: ImageCheck, found: Counter[str], preimages_since: int | None
    ) -> None:
        """Compare images with changes.

        Args:
            deltas: the converter for changes of all fields.
            images: the converter for images.
            check: describes the findings.
            found: counts the findings.
            preimages_since: the write time since which the log is known to have preimages; None if it has none.
        """
        self.table = deltas.table
        self.columns = deltas.columns
        self._deltas = deltas
        self._images = images
        self._check = check
        self._found = found
        self._preimages_since = preimages_since

    def convert(self, page: pa.RecordBatch, captured_at: datetime) -> pa.RecordBatch:
        """Return the changes of complete groups of rows.

        Raises:
            LogGap, LogError, BadValue: as in `Deltas`. Comparing raises no error.
        """
        changes = self._deltas.convert(page, captured_at)
        are_postimages = L.operations(page) == L.POSTIMAGE
        if are_postimages.any():
            try:
                self._compare(self._images.convert(page, captured_at), changes)
            # A fault of the comparison must not prevent that changes are published.
            except Exception as e:
                self._found[IMAGE_NOT_COMPARED] += int(are_postimages.sum())
                self._check.fault(self.table, page, are_postimages, e)
        return changes

    def _compare(self, images: pa.RecordBatch, changes: pa.RecordBatch) -> None:
        same_rows = changes.filter(pc.is_in(changes["key"], images["key"]))
        table = pa.Table.from_batches([same_rows])
        for found in contradictions(images, table, self.table, self._preimages_since):
            self._found[IMAGE_DISAGREES] += 1
            self._check.disagreement(self.table, found)

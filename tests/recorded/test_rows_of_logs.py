"""Rows of recorded CDC logs that are not changes: rows of dropped static columns, and images."""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest

from tests.recorded.recording import Recorded, Recording, log_settings, pages_of, session_of
from writetime.scylla_cdc.findings import IMAGE_DISAGREES, IMAGE_NOT_COMPARED, STATIC_DROPPED
from writetime.scylla_cdc.images import contradictions
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import CdcSource

pytestmark = pytest.mark.slow

WITH_IMAGES = {"rec102.x_4", "rec103.x_1", "rec103.t5", "rec104.x_3", "rec104.t4", "rec105.x_2", "rec109.x_3"}


def source_of(recording: Recording, table: str) -> CdcSource:
    return CdcSource(session_of(recording), pages_of(recording), log_settings(), table)


def test_rows_of_dropped_static_columns_are_counted(recorded: Recorded) -> None:
    recording, table = recorded
    source = source_of(recording, table)
    keys = {c.name for c in source.schema.partition_key + source.schema.clustering}
    clustering = [c.name for c in source.schema.clustering]
    wanted = 0
    for row in recording.of(table, "log").dicts():
        values = [v for n, v in row.items() if n not in keys and (n[:4] != "cdc$" or n[:11] == "cdc$deleted")]
        without = bool(clustering) and all(row[n] is None for n in clustering)
        wanted += row["cdc$operation"] == b"\x01" and without and not any(v is not None for v in values)
    found: Counter[str] = Counter()
    list(source.read(interval(source, None, None, None), found=found))
    assert found.total() == found[STATIC_DROPPED] == wanted
    if table in ("rec103.x_1", "rec103.x_3", "rec105.x_1"):
        assert wanted > 10


def test_images_agree_with_the_changes_of_any_windows(recorded: Recorded) -> None:
    """No row was missing from the log, and there was one client."""
    recording, table = recorded
    source = source_of(recording, table)
    pieces = interval(source, None, None, None)
    start, end = min(piece.start for piece in pieces), max(piece.end for piece in pieces)
    images = pa.concat_tables(pa.Table.from_batches([batch]) for batch in source.images(pieces))
    if table in WITH_IMAGES:
        assert len(images) > 70
    if not len(images):
        return
    r = random.Random(table)
    times = sorted(set(images["write_time"].to_pylist()))
    for windows in (1, 2, 5):
        cuts = sorted(r.sample(times, windows - 1))
        for first, last in pairwise([start, *cuts, end]):
            found: Counter[str] = Counter()
            texts: list[str] = []
            some = [replace(p, start=max(p.start, first), end=min(p.end, last)) for p in pieces]
            list(source.read([p for p in some if p.start < p.end], found=found, texts=texts))
            assert not texts
            assert found[IMAGE_DISAGREES] == found[IMAGE_NOT_COMPARED] == 0
    # Images of other values disagree.
    values = [n for n in images.column_names if n not in ("kind", "stream", "write_time", "key", "position")]
    if len({str(row) for row in images.select(values).to_pylist()}) > 2:
        other = images.take([*range(1, len(images)), 0])
        for name in values:
            images = images.set_column(images.schema.get_field_index(name), name, other[name])
        changes = pa.Table.from_batches(list(source.read(pieces)))
        assert list(contradictions(images.combine_chunks().to_batches()[0], changes, source.schema))

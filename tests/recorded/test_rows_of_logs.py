"""Rows of recorded CDC logs beside changes: of dropped static columns, and images."""

from collections import Counter

from tests.recorded.recording import Recording, pages_of, session_of
from tests.recorded.test_recorded import Recorded, log_settings
from writetime.scylla_cdc.findings import STATIC_DROPPED
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import CdcSource


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

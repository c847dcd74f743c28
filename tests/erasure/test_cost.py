"""An erasure reads the files of the buckets of its partitions, and writes those again that have them.

Oracle: a search of all files by other programs.
"""

from pathlib import Path

import pytest

from tests.erasure.people import Lake, people
from tests.support.bytes_left import found_in, texts_below
from tests.support.watched_files import READS, watched_files
from writetime.delta import buckets
from writetime.lake import state

pytestmark = pytest.mark.slow


def test_an_erasure_costs_the_files_that_have_the_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sixteen buckets, a sixteenth of the lake."""
    # So that a batch of few rows is a file per bucket.
    monkeypatch.setattr(buckets, "FEW_ROWS", 1)
    everyone = people(80)
    lake = Lake(tmp_path, buckets=16)
    lake.fill(everyone, everyone[:1])
    state.fold(lake.table)
    lake.follow()
    before = data_files(tmp_path)
    found = found_in({path: text for path, text in texts_below(tmp_path).items() if path in before}, everyone[0].values)
    holding = {Path(file) for files in found.values() for file in files}
    assert 4 <= len(holding) < len(before) / 8
    calls: list[tuple[str, str]] = []
    with watched_files(lambda method, path: calls.append((method, path))):
        certificate = lake.erase(everyone[:1])
    after = data_files(tmp_path)
    assert before - after == holding
    assert len(after - before) <= len(holding)
    written = [Path(path) for method, path in calls if method == "open_output_stream" and path.endswith(".parquet")]
    assert {path for path in written if "_delta_log" not in path.parts} == after - before
    read = {Path(path) for method, path in calls if method in READS and path.endswith(".parquet")}
    assert {path.parent for path in read if "_delta_log" not in path.parts} == {path.parent for path in holding}
    assert sum(part.get("files written again", 0) for part in certificate["done"].values()) <= len(holding)


def data_files(folder: Path) -> set[Path]:
    return {path for path in (folder / "lake").rglob("*.parquet") if "_delta_log" not in path.parts}

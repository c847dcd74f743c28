"""A short attack on files: it finds nothing, and it would find known faults.

Oracle: the rules of `tests.attack.files`: changes or a documented error, within limits of time and memory.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attack.files import attack, rewritten
from tests.attack.report import Report
from tests.attack.watched import Limits, Watch, work
from tests.support.examples import rounds
from writetime.storage.file_errors import CorruptFile
from writetime.storage.locations import FEATURES
from writetime.storage.sstable import SSTable

pytestmark = pytest.mark.long


def test_no_file_harms_its_reader() -> None:
    count = rounds(400)
    report = attack(seed=1, rounds=count)
    print(report.text())
    assert report.tried == count
    assert not report.findings, report.text()
    # All versions that are read.
    versions = {version for _, version in FEATURES}
    assert {target.partition(" ")[0] for target in report.counts} == versions | {"commit"}


def test_the_versions_that_no_server_here_writes_are_read(tmp_path: Path) -> None:
    versions = []
    for location in rewritten(tmp_path):
        batches = list(SSTable(location).scan())
        assert sum(batch.num_rows for batch in batches), location
        versions.append(location.version)
    assert sorted(versions) == ["mc", "mc", "md", "md", "ms", "ms", "na", "na"]


def misbehave(first: int) -> None:
    """A worker whose inputs crash, hang, use memory, raise undocumented exceptions, or are read."""

    def crash() -> str:
        ctypes.string_at(8)
        return "read"

    def hang() -> str:
        threading.Event().wait()
        return "read"

    def take() -> str:
        return "read" if len(bytes(range(256)) * (1 << 18)) else ""

    def reserve() -> str:
        return "read" if bytearray(1 << 34) else ""

    def raise_another() -> str:
        raise CorruptFile("a file", 0, "of another kind")

    attempts: list[Callable[[], str]] = [lambda: "read", crash, hang, take, reserve, raise_another, lambda: "read"]

    def trials() -> Iterator[tuple[int, str, Callable[[], str]]]:
        for number in range(first, len(attempts)):
            yield number, "target", attempts[number]

    work(trials(), Limits(touched_mib=32))


def test_the_attack_finds_known_faults() -> None:
    report = Report()
    root = str(Path(__file__).parents[2])
    script = f"import sys; sys.path.insert(0, {root!r}); from tests.attack.test_files import misbehave; misbehave(%d)"
    Watch(lambda first: ["-c", script % first], report, Limits(seconds=5)).run(0, None)
    assert report.counts == {"target": {"read": 2, "crash": 1, "hang": 1, "memory": 1, "wrong error": 2}}
    found = [finding.partition(", ")[0] for finding in report.findings]
    assert found == [f"input {n}" for n in (1, 2, 3, 4, 5)]
    assert [kind for kind in ("SIGSEGV", "no answer", "MemoryError", "CorruptFile") if kind not in report.text()] == []

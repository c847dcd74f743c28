"""A state folder of which one file is missing, damaged or older loses nothing: the agent goes on, or names the file."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.capture.agents import status_of, until
from tests.support.captured import Captured
from tests.support.waiting import wait_for
from writetime.capture.checkpoint import Checkpoint
from writetime.capture.state_files import append_lines, read_json, write_json
from writetime.core.errors import WritetimeError
from writetime.lake.views import time_now

pytestmark = pytest.mark.long

_FILES = ("progress.json", "node.json", "snapshots.json", "schemas")


def missing(_: bytes) -> None:
    return None


def empty(_: bytes) -> bytes:
    return b""


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def zeros(content: bytes) -> bytes:
    return bytes(len(content))


def another_digit(content: bytes) -> bytes:
    """JSON as before, with the last digit of its last number changed."""
    at = max(i for i, byte in enumerate(content) if chr(byte).isdigit())
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def other_json(_: bytes) -> bytes:
    return b"[]"


def no_entries(_: bytes) -> bytes:
    return b"{}"


_DAMAGES = (missing, empty, truncated, zeros, another_digit, other_json, no_entries)


@pytest.fixture(scope="module")
def rows() -> Iterator[int]:
    """The keys of rows, each used once."""
    return iter(range(10**6))


def files_of(state: Path, name: str) -> list[Path]:
    path = state / name
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def goes_on(captured: Captured, rows: Iterator[int]) -> None:
    """Write a row before the agent starts, and one while it runs. It publishes both, or holds the watermark."""
    name = f"{captured.keyspace}.t"
    captured.write(f"INSERT INTO {{ks}}.t (k) VALUES ({next(rows)})")
    with captured.agent(snapshot="initial"):
        captured.write(f"INSERT INTO {{ks}}.t (k) VALUES ({next(rows)})")
        now = time_now()
        wait_for(lambda: captured._faults or until(captured, "t") > now or name in status_of(captured).get("held", {}))
    captured.assert_same("t")


@pytest.mark.parametrize("damage", _DAMAGES)
@pytest.mark.parametrize("name", _FILES)
def test_a_damaged_file_is_refused_or_harmless(
    captured: Captured, rows: Iterator[int], name: str, damage: Callable[[bytes], bytes | None]
) -> None:
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true")
    goes_on(captured, rows)
    state = captured.settings.capture.state_dir
    shutil.copytree(state, whole := state.with_name("whole"))
    files = files_of(state, name)
    for path in files:
        damaged = damage(path.read_bytes())
        path.unlink() if damaged is None else path.write_bytes(damaged)
    try:
        goes_on(captured, rows)
    except AssertionError:
        (fault,) = captured._faults
        captured._faults.clear()
        assert isinstance(fault, WritetimeError)
        assert str(files[0]) in str(fault)
        assert "restore all files of" in str(fault)
        shutil.rmtree(state)
        whole.rename(state)
        goes_on(captured, rows)
    # The agent that would go on from the damaged position loses writes, so these must be refused.
    else:
        assert (name, damage) not in {(n, d) for n in _FILES[:2] for d in _DAMAGES}


@pytest.mark.parametrize("name", _FILES)
def test_a_file_of_an_earlier_copy_loses_nothing(captured: Captured, rows: Iterator[int], name: str) -> None:
    captured.write("CREATE TABLE {ks}.t (k int PRIMARY KEY) WITH cdc = true")
    goes_on(captured, rows)
    state = captured.settings.capture.state_dir
    shutil.copytree(state, earlier := state.with_name("earlier"))
    captured.write("ALTER TABLE {ks}.t ADD v int")
    captured.fill(3)
    goes_on(captured, rows)
    for path in files_of(earlier, name):
        shutil.copy(path, state / path.relative_to(earlier))
    goes_on(captured, rows)


def test_each_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    content = {"node": None, "published_until": 1 << 60, "covered": {"a": 1}, "segments": {}}
    write_json(path, content)
    assert read_json(path) == content
    whole = path.read_bytes()
    for i in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:i] + bytes([whole[i] ^ 1 << bit]) + whole[i + 1 :])
            try:
                found = read_json(path)
            except WritetimeError:
                continue
            assert found == content


def test_each_changed_byte_of_a_line_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "segments.jsonl"
    append_lines(path, [["a", None], ["b", None]])
    whole = path.read_bytes()
    for i in range(whole.index(b"\n")):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        with pytest.raises(WritetimeError, match=r"segments\.jsonl is damaged"):
            Checkpoint(tmp_path)

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import pytest

from tests.support import read_only
from writetime.core.errors import WritetimeError
from writetime.runtime import jars

pytestmark = pytest.mark.slow

SETS = {line.split()[0] for line in jars.LOCK_FILE.read_text().splitlines() if not line.startswith("#")}


@pytest.mark.parametrize("name", sorted(SETS))
def test_every_jar_is_pinned_by_digest(name: str) -> None:
    pinned = jars.pinned(name)
    assert pinned
    assert len({jar.file_name for jar in pinned}) == len(pinned)
    assert all(len(jar.sha256) == 64 for jar in pinned)


def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"tiny org.slf4j:slf4j-api:2.0.17 {'0' * 64}\n")
    monkeypatch.setattr(jars, "LOCK_FILE", lock)
    monkeypatch.setenv("WRITETIME_CACHE", str(tmp_path))
    with pytest.raises(WritetimeError, match=r"slf4j-api-2\.0\.17\.jar has SHA-256 .* but jars\.lock pins 000"):
        jars.fetch("tiny")
    assert not list((tmp_path / "jars").glob("*.jar"))


def pin(monkeypatch: pytest.MonkeyPatch, folder: Path, content: bytes) -> Path:
    """Pin a jar that Maven has under this name, with the digest of some content, and return where it is cached."""
    (folder / "jars").mkdir()
    lock = folder / "jars.lock"
    lock.write_text(f"tiny org.slf4j:slf4j-api:2.0.17 {hashlib.sha256(content).hexdigest()}\n")
    monkeypatch.setattr(jars, "LOCK_FILE", lock)
    monkeypatch.setenv("WRITETIME_CACHE", str(folder))
    (jar,) = jars.pinned("tiny")
    return folder / "jars" / jar.file_name


def test_a_cached_jar_that_was_changed_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def download(missing: list[jars.Jar], cache: Path) -> None:
        for jar in missing:
            fetched.append(jar.file_name)
            (cache / jar.file_name).write_bytes(b"sound")

    monkeypatch.setattr(jars, "_download", download)
    path = pin(monkeypatch, tmp_path, b"sound")
    # Truncated, of the same size, and empty: at the first check, and after a check that found it valid.
    for wrong in (b"sou", b"SOUND", b""):
        path.write_bytes(wrong)
        assert [p.read_bytes() for p in jars.fetch("tiny")] == [b"sound"]
        assert [p.read_bytes() for p in jars.fetch("tiny")] == [b"sound"]
    assert fetched == [path.name] * 3


def test_programs_that_need_the_same_jars_fetch_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    started, goes_on = Event(), Event()

    def download(missing: list[jars.Jar], cache: Path) -> None:
        started.set()
        assert goes_on.wait(60)
        for jar in missing:
            fetched.append(jar.file_name)
            (cache / jar.file_name).write_bytes(b"sound")

    monkeypatch.setattr(jars, "_download", download)
    path = pin(monkeypatch, tmp_path, b"sound")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(jars.fetch, "tiny")
        assert started.wait(60)
        others = [pool.submit(jars.fetch, "tiny") for _ in range(3)]
        assert not wait(others, timeout=0.2).done
        goes_on.set()
        assert [one.result() for one in (first, *others)] == [[path]] * 4
    assert fetched == [path.name]


def test_a_cached_jar_is_read_once_while_it_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pin(monkeypatch, tmp_path, b"sound")
    path.write_bytes(b"sound")
    read: list[Path] = []
    original = jars._sha256
    monkeypatch.setattr(jars, "_sha256", lambda file: read.append(file) or original(file))
    for _ in range(3):
        assert jars.fetch("tiny") == [path]
    assert read == [path]
    record = tmp_path / "jars" / "checked.json"
    assert record.stat().st_mode & 0o777 == 0o644
    os.utime(path, ns=(1, 1))
    assert jars.fetch("tiny") == [path]
    record.write_text("{")
    assert jars.fetch("tiny") == [path]
    record.unlink()
    # Cannot be read, like the file of another user.
    record.mkdir()
    assert jars.fetch("tiny") == [path]
    assert read == [path] * 4
    # Another version of the program may pin another digest for the same name.
    lock = tmp_path / "jars.lock"
    lock.write_text(lock.read_text().replace(hashlib.sha256(b"sound").hexdigest(), "0" * 64))
    with pytest.raises(WritetimeError, match=r"but jars\.lock pins 000"):
        jars.fetch("tiny")


@pytest.mark.skipif(not read_only.is_possible(), reason="needs Landlock, of Linux 6.2")
def test_jars_are_found_in_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pin(monkeypatch, tmp_path, b"sound")
    path.write_bytes(b"sound")
    code = (
        "import sys; from pathlib import Path; from writetime.runtime import jars; jars.LOCK_FILE = Path(sys.argv[1]); "
    )
    command = [sys.executable, "-c", code + "print(*jars.fetch('tiny'))", str(jars.LOCK_FILE)]
    wrapper = [sys.executable, "-m", "tests.support.read_only", "--"]
    found = subprocess.run([*wrapper, *command], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(path)]
    assert not list(path.parent.glob("*.json"))

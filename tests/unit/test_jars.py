from pathlib import Path

import pytest

from writetime.errors import WritetimeError
from writetime.servers import jars


@pytest.mark.parametrize("name", ["cassandra", "kafka", "zookeeper", "registry", "spark", "bench"])
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

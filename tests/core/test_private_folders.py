"""Other users cannot read the rows in `.writetime`, and in Spark's temporary files."""

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from writetime.capture import state_files
from writetime.core.private_folders import private_temporary_folder, restrict_home
from writetime.delta.commits import put_new
from writetime.delta.parquet import write_file
from writetime.delta.storage import Storage

WRITERS: dict[str, Callable[[Path], object]] = {
    "state": lambda home: state_files.lock_folder(home / "capture" / "node"),
    "commit": lambda home: put_new(Storage(str(home / "lake" / "ks.t" / "changes")), "_delta_log/0.json", b"{}"),
    "data file": lambda home: write_file(Storage(str(home / "lake")), pa.table({"a": [1]}), 0, None),
}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("existing", [None, 0o755, 0o777, 0o700, 0o750])
@pytest.mark.parametrize("writer", WRITERS)
def test_only_its_user_enters_the_home_folder(writer: str, existing: int | None, tmp_path: Path) -> None:
    outside, home = tmp_path / "shared", tmp_path / "shared" / ".writetime"
    outside.mkdir()
    outside.chmod(0o755)
    if existing is not None:
        home.mkdir()
        home.chmod(existing)
    WRITERS[writer](home)
    assert mode(home) == 0o700
    assert mode(outside) == 0o755


@pytest.mark.parametrize("writer", WRITERS)
def test_folders_elsewhere_keep_their_rights(writer: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "lakes"
    elsewhere.mkdir()
    elsewhere.chmod(0o755)
    WRITERS[writer](elsewhere)
    assert mode(elsewhere) == 0o755


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    restrict_home(Path(".writetime/cache"))
    assert mode(tmp_path / ".writetime") == 0o700


def test_temporary_files_of_spark(spark: SparkSession) -> None:
    spark.range(100).repartition(3).count()
    folder = Path(private_temporary_folder())
    assert mode(folder) == 0o700
    assert spark.conf.get("spark.local.dir") == str(folder)
    assert list(folder.glob("blockmgr-*"))


def test_the_temporary_folder_ends_with_its_process() -> None:
    program = "from writetime.core.private_folders import private_temporary_folder as f; print(f())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("/")
    assert not Path(done.stdout.strip()).exists()

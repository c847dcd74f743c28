"""A lake in an object store that lacks objects, or whose listing is old: right rows, or an error with a remedy."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs

from tests.lake.sound_lake import PARTS, land, make, rows
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.repaired import NAME, assert_right, settings_of

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sound"))


def without_the_newest_commit(part: Path) -> None:
    max(part.glob("_delta_log/*.json")).unlink()


def as_of_an_earlier_listing(part: Path) -> None:
    for path in sorted(part.glob("_delta_log/*.json"))[-4:]:
        path.unlink()


def without_a_data_file(part: Path) -> None:
    max((p for p in part.rglob("*.parquet") if "_delta_log" not in p.parts), key=lambda p: p.stat().st_mtime).unlink()


DAMAGES = (without_the_newest_commit, as_of_an_earlier_listing, without_a_data_file)


@pytest.mark.parametrize(
    ("part", "damage"),
    # A data file of the changes has no other copy in the lake, and commands do not need those of the view.
    [(p, d) for p in PARTS for d in DAMAGES if d is not without_a_data_file or p in ("state", "row_events")],
)
def test_a_store_that_lacks_objects_is_repaired_by_the_command_of_its_error(
    store: ObjectStore,
    sound: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    damage: Callable[[Path], None],
) -> None:
    shutil.copytree(sound, tmp_path / "lake")
    damage(tmp_path / "lake" / NAME / part)
    target = f"{BUCKET}/{part}-{damage.__name__}"
    fs.copy_files(str(tmp_path / "lake"), target, destination_filesystem=store.filesystem())
    monkeypatch.setenv("WRITETIME_CONFIG", str(settings_of(tmp_path, f"s3://{target}", store.options)))
    assert_right(f"s3://{target}/{NAME}", rows(), land, store.options)

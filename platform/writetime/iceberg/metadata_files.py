"""The files of an Iceberg table's metadata, in the folder `metadata` of the Delta table.

The table needs no catalog: `vN.metadata.json` is its N-th version, and `version-hint.text` has the N of the newest one,
as in a table of Iceberg's Hadoop catalog (spec.md, "File System Tables"). A version is written only if it does not
exist, so of two writers, one commits.
"""

import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import orjson
from pyarrow import fs

from writetime.delta.commits import put_new
from writetime.delta.storage import Storage

FOLDER = "metadata"
"""The folder of the files below that of the Delta table."""
_HINT = f"{FOLDER}/version-hint.text"
_NAME = re.compile(r"v(\d+)\.metadata\.json")
_OTHERS = re.compile(r"\d+-[0-9a-f]{16}-[a-z]+(-\d+)?\.(avro|puffin)|[0-9a-f]{32}\.tmp")


def location_of(storage: Storage) -> str:
    """Return the address of a table by which other programs open it."""
    return f"file://{storage.address}" if storage.is_local else storage.address


def metadata_name(number: int) -> str:
    """Return the path of a version of the metadata."""
    return f"{FOLDER}/v{number}.metadata.json"


def is_own(name: str) -> bool:
    """Return whether a file of the folder has a name that the files of this package have: a version of the metadata, a
    file of a snapshot (`Snapshot.named`), or a hint that is not in its place yet. A catalog writes others there.
    """
    return bool(_NAME.fullmatch(name) or _OTHERS.fullmatch(name))


def newest(storage: Storage, known: int = 0) -> int:
    """Return the number of the newest version, 0 if there is none. If one is `known`, only the later ones are sought,
    or all if it no longer exists.
    """
    found = known or _hinted(storage)
    if not found or not exists(storage, metadata_name(found)):
        found = max(_listed(storage), default=0)
    while found and exists(storage, metadata_name(found + 1)):
        found += 1
    return found


def exists(storage: Storage, path: str) -> bool:
    """Return whether a file exists."""
    return storage.filesystem().get_file_info(path).is_file


def _hinted(storage: Storage) -> int:
    try:
        return int(read(storage, _HINT))
    except (FileNotFoundError, ValueError):
        return 0


def _listed(storage: Storage) -> Iterable[int]:
    found = storage.filesystem().get_file_info(fs.FileSelector(FOLDER, allow_not_found=True))
    return [int(match[1]) for info in found if (match := _NAME.fullmatch(info.base_name))]


def read(storage: Storage, path: str) -> bytes:
    """Return the content of a file."""
    with storage.filesystem().open_input_stream(path) as stream:
        return stream.read()


def read_metadata(storage: Storage, number: int) -> dict[str, Any]:
    """Return a version of the metadata.

    Raises:
        ValueError: it is no JSON.
    """
    return orjson.loads(read(storage, metadata_name(number)))


def write(storage: Storage, files: Mapping[str, bytes]) -> None:
    """Write files with new names, durably."""
    if storage.is_local:
        storage.filesystem().create_dir(FOLDER)
    for path, data in files.items():
        with storage.writing(path) as stream:
            stream.write(data)
        storage.sync(path)


def commit(storage: Storage, number: int, metadata: Mapping[str, Any]) -> bool:
    """Write a version of the metadata, with the names of all files before it, durably. Return whether another program
    has not written it first.
    """
    data = orjson.dumps(metadata)
    # A client repeats a request whose answer was lost. Then the store answers that the file exists.
    if not put_new(storage, metadata_name(number), data) and read(storage, metadata_name(number)) != data:
        return False
    _hint(storage, number)
    return True


def repair_hint(storage: Storage, number: int) -> None:
    """Let the hint name a version, if it does not."""
    if _hinted(storage) != number:
        _hint(storage, number)


def _hint(storage: Storage, number: int) -> None:
    """Let the hint name a version. Readers never see a part of it."""
    if not storage.is_local:
        with storage.writing(_HINT) as stream:
            stream.write(b"%d" % number)
        return
    written = f"{FOLDER}/{uuid.uuid4().hex}.tmp"
    with storage.writing(written) as stream:
        stream.write(b"%d" % number)
    storage.sync(written)
    storage.filesystem().move(written, _HINT)


def delete(storage: Storage, paths: Iterable[str]) -> None:
    """Delete files that no version names. `sweep` deletes those that stay."""
    filesystem = storage.filesystem()
    for path in paths:
        with suppress(OSError):
            filesystem.delete_file(path)

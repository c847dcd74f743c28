"""Commits to a compacted view. Each records which files, with which deletion vectors, it leaves. So the next one knows
whether another program has changed the view since.
"""

import hashlib
from collections.abc import Mapping

from writetime.delta.deletion_vectors import DeletionVector
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import TableVersion
from writetime.lake.table import LakeTable

AS_OF = "writetime.as_of"
"""The time of a compacted view (microseconds), with its commit."""

# A number in each of our commits: the digest of the files that it leaves.
_DIGEST = "writetime-files"


def is_ours(view: TableVersion) -> bool:
    """Return whether the files are those of Writetime's last commit, so that no other program has added, removed,
    marked or restored any.
    """
    return view.transaction(_DIGEST) == _digest({path: file.vector for path, file in view.by_path.items()})


def commit_view(
    table: LakeTable, before: TableVersion, change: TableChange, numbers: Mapping[str, int], as_of: int
) -> None:
    """Commit a change of a view as of a time (microseconds).

    Raises:
        Conflict: a file of the change, or one of the numbers, has changed since `before`, or another program has
            changed the view.
    """

    def digest(now: TableVersion) -> Mapping[str, int]:
        # Changes that another program has made since must not count as Writetime's own.
        if now.by_path != before.by_path and not is_ours(now):
            raise table.view.conflict()
        return {_DIGEST: _digest(change.files_after(now.by_path))}

    table.view.commit(before, change, numbers, numbers_after=digest, info={AS_OF: str(as_of)})


def _digest(vectors: Mapping[str, DeletionVector | None]) -> int:
    """Return a number that identifies live files with their vectors. Delta stores numbers of 63 bits."""
    named = sorted(
        (path, vector.place if vector else "", vector.offset if vector else 0) for path, vector in vectors.items()
    )
    return int.from_bytes(hashlib.sha256(repr(named).encode()).digest()[:8]) >> 1

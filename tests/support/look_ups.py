"""The partitions of a table, for look-ups."""

from writetime.core.arrow import one_chunk
from writetime.files.key_ranges import KeyRanges, partitions
from writetime.lake.table import LakeTable


def partitions_of(table: LakeTable) -> list[KeyRanges]:
    """The place of each partition that a table has changes of, in order."""
    found = table.changes.read(["token", "key"]).group_by(["token", "key"]).aggregate([]).sort_by("token")
    tokens, keys = one_chunk(found["token"]), one_chunk(found["key"])
    return [partitions(tokens.slice(i, 1), keys.slice(i, 1)) for i in range(len(tokens))]

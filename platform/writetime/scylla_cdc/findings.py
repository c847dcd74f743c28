"""Findings in a log that are not changes, counted by kind. The agent shows them as metrics and in its status."""

from collections.abc import Iterator, Mapping

STATIC_DROPPED, IN_SNAPSHOT, DOUBTFUL_INSERT = "static_dropped", "in_snapshot", "doubtful_insert"
IMAGE_DISAGREES, IMAGE_NOT_COMPARED = "image_disagrees", "image_not_compared"
LATE, CLOSED_SET = "late", "closed_set"

_TEXTS = {
    STATIC_DROPPED: "rows skipped, which had values of dropped static columns only",
    IN_SNAPSHOT: "rows skipped, which cannot be read, and are in the snapshot that closed the gap",
    DOUBTFUL_INSERT: "inserts without values from before the last ALTER TABLE: if delta was keys at that time, their "
    "values are missing",
    LATE: "rows that arrived after their window was read, and were found by reading it again",
    CLOSED_SET: "rows that were added to the streams of a set after it was closed",
    IMAGE_DISAGREES: "values of postimages that differ from the changes: compare with writetime verify",
    IMAGE_NOT_COMPARED: "postimages that could not be compared: the agent's log has the reason",
}


def finding_lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield one line per kind of finding."""
    for kind, text in _TEXTS.items():
        if counts.get(kind):
            yield f"{counts[kind]:,} {text}"

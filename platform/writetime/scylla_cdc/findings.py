"""What is found in a log beside changes, counted by kind. The agent shows it by metric and status, the command at its
end."""

from collections.abc import Iterator, Mapping

STATIC_DROPPED, IN_SNAPSHOT, DOUBTFUL_INSERT = "static_dropped", "in_snapshot", "doubtful_insert"

_TEXTS = {
    STATIC_DROPPED: "rows skipped, which had values of dropped static columns only",
    IN_SNAPSHOT: "rows skipped, which cannot be read, and are in the snapshot that closed the gap",
    DOUBTFUL_INSERT: "inserts without values from before the last ALTER TABLE: if delta was keys then, they had some",
}


def finding_lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a line about each kind of finding that there is."""
    for kind, text in _TEXTS.items():
        if counts.get(kind):
            yield f"{counts[kind]:,} {text}"

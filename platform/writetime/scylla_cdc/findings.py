"""What is found in a log beside changes, counted by kind. The agent shows it by metric and status, the command at its
end."""

from collections.abc import Iterator, Mapping

STATIC_DROPPED, IN_SNAPSHOT = "static_dropped", "in_snapshot"

_TEXTS = {
    STATIC_DROPPED: "rows skipped, which had values of dropped static columns only",
    IN_SNAPSHOT: "rows skipped, which cannot be read, and are in the snapshot that closed the gap",
}


def finding_lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a line about each kind of finding that there is."""
    for kind, text in _TEXTS.items():
        if counts.get(kind):
            yield f"{counts[kind]:,} {text}"

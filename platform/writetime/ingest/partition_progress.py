"""The progress of one Kafka partition: which delivered offsets are done, and which may be committed.

Offsets are not consecutive (compaction and transactions leave gaps), so contiguity means "every offset that was
*delivered* below this one is done", never "plus one". The done offsets beyond that floor are kept in the metadata of
the commit, so that a restart does not repeat them. So is the id of the topic: a topic of the same name that was created
later has other messages at these offsets.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby

from writetime.clients.consumer_groups import note_of_topic, topic_of_note

# The broker's default for offset.metadata.max.bytes; it rejects a commit with a longer text.
MAX_METADATA_BYTES = 4096
_PREFIX = "done:"
# The largest size of the topic's id, which is before that.
_NOTE_BYTES = 32
_METADATA = re.compile(r"done:\d+\+\d+(,\d+\+\d+)*")


class PartitionProgress:
    """Tracks offsets from delivery until they are done."""

    def __init__(self, start: int, metadata: str = "", topic_id: int = 0) -> None:
        """Begin at `start`, the committed offset, with the metadata of that commit."""
        self.next_offset = start
        self._note = note_of_topic(topic_id)
        self._open: deque[int] = deque()
        self._done: set[int] = set()
        self._done_before = deque(decode_done(start, metadata))

    @property
    def floor(self) -> int:
        """The offset to commit: every delivered offset below it is done."""
        return self._open[0] if self._open else self.next_offset

    def deliver(self, offset: int) -> bool:
        """Record that a message was delivered; return False if an earlier run has done it. Offsets must increase: a
        smaller one is a ValueError, and means that two readers share this tracker.
        """
        if offset < self.next_offset:
            raise ValueError(f"offset {offset} was delivered after {self.next_offset - 1}")
        self.next_offset = offset + 1
        self._open.append(offset)
        while self._done_before and self._done_before[0].stop <= offset:
            self._done_before.popleft()
        if self._done_before and offset in self._done_before[0]:
            self.finish(offset)
            return False
        return True

    def finish(self, offset: int) -> None:
        """Record that a delivered message is done."""
        self._done.add(offset)
        while self._open and self._open[0] in self._done:
            self._done.remove(self._open.popleft())

    def reach(self, offset: int) -> None:
        """Record that the partition has no further message below `offset` (its end, past control records)."""
        self.next_offset = max(self.next_offset, offset)

    @property
    def open_count(self) -> int:
        """The number of offsets from the floor on that are remembered, done or not."""
        return len(self._open)

    @property
    def idle(self) -> bool:
        """Whether every delivered message is done."""
        return not self._open

    def metadata(self) -> str:
        """Return the id of the topic, and the done offsets beyond the floor, as runs; runs that do not fit are left
        out, and read again.
        """
        return f"{self._note} {encode_done(self.floor, self._runs())}".strip()

    def _runs(self) -> Iterator[range]:
        done = (offset for offset in self._open if offset in self._done)
        # Consecutive offsets have the same difference from their numbers.
        for _, run in groupby(enumerate(done), lambda numbered: numbered[1] - numbered[0]):
            offsets = [offset for _, offset in run]
            yield range(offsets[0], offsets[-1] + 1)
        for run in self._done_before:
            if run.stop > self.next_offset:
                yield range(max(run.start, self.next_offset), run.stop)


def encode_done(floor: int, runs: Iterable[range]) -> str:
    """Write runs of done offsets as `done:GAP+LENGTH,...`; each gap counts from the end of the previous run."""
    parts: list[str] = []
    size = len(_PREFIX) + _NOTE_BYTES
    position = floor
    for run in runs:
        part = f"{run.start - position}+{len(run)}"
        size += len(part) + 1
        if size > MAX_METADATA_BYTES:
            break
        parts.append(part)
        position = run.stop
    return _PREFIX + ",".join(parts) if parts else ""


def decode_done(floor: int, metadata: str) -> list[range]:
    """Parse the output of `encode_done`. The metadata of another program gives no done offsets."""
    metadata = metadata[metadata.find(_PREFIX) :] if topic_of_note(metadata) else metadata
    if not _METADATA.fullmatch(metadata):
        return []
    runs = []
    position = floor
    for part in metadata.removeprefix(_PREFIX).split(","):
        gap, length = part.split("+")
        start = position + int(gap)
        position = start + int(length)
        runs.append(range(start, position))
    return runs

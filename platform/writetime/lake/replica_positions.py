"""The position of a replication: the changes of the lake that the target has.

Each position is a new file `replication/<cluster>/<number>.json` of the table's folder, and the one before it is
deleted. So a reader finds a whole position, and of two programs that write one, the second learns of the first.
"""

import re
from contextlib import suppress

from pyarrow import fs
from pydantic import BaseModel, ConfigDict, ValidationError

from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import Conflict
from writetime.delta.commits import put_new
from writetime.delta.versions import CommitId
from writetime.lake.table import LakeTable

_FOLDER = "replication"
_NUMBER = re.compile(r"(\d+)\.json")


class ReplicationPosition(BaseModel):
    """The commit of `changes` up to which the target has them, and their generation.

    `loaded` are the buckets that the first load has written; None when it is complete. `complete_until` (microseconds)
    is the time up to which the lake had all writes at that commit. `written_at` (microseconds) is when the position was
    written, `target_id` is the id of the table in the target, and `part` is that of `ReplicatedPart.text`. While nodes
    import SSTables, `transfer` is the name of their folder, and `then` is the position when all have done so.
    """

    model_config = ConfigDict(frozen=True)

    generation: int
    version: int
    digest: int
    complete_until: int
    written_at: int
    target_id: str
    part: str = ""
    loaded: tuple[int, ...] | None = None
    transfer: str | None = None
    then: "ReplicationPosition | None" = None

    @property
    def commit(self) -> CommitId:
        """The commit of `changes`."""
        return CommitId(self.version, self.digest)


class Positions:
    """The positions of the replication of a table to a cluster."""

    def __init__(self, table: LakeTable, cluster: str) -> None:
        self._storage = table.storage.folder(_FOLDER).folder(cluster)
        # The newest position that was read or written, and those before it that are still there.
        self._number = 0
        self._earlier: list[int] = []

    def read(self) -> ReplicationPosition | None:
        """Return the newest position; None before the first one."""
        filesystem = self._storage.filesystem()
        while True:
            found = filesystem.get_file_info(fs.FileSelector("", allow_not_found=True))
            numbers = sorted(int(match[1]) for info in found if (match := _NUMBER.fullmatch(info.base_name)))
            if not numbers:
                return None
            *self._earlier, self._number = numbers
            try:
                with filesystem.open_input_stream(f"{self._number}.json") as file:
                    content = file.read()
            except FileNotFoundError:
                # Another program has written the next one meanwhile.
                continue
            return self._parsed(content)

    def _parsed(self, content: bytes) -> ReplicationPosition:
        try:
            return ReplicationPosition.model_validate_json(content)
        except ValidationError as e:
            raise WritetimeError(
                f"{self._storage.address}/{self._number}.json is damaged ({e.errors()[0]['msg']}): run `writetime "
                "replicate --again` to load the table again"
            ) from None

    def write(self, position: ReplicationPosition) -> None:
        """Write the next position. Raise `Conflict` if another program wrote one since the last call."""
        name = f"{self._number + 1}.json"
        if not put_new(self._storage, name, position.model_dump_json().encode()):
            raise Conflict(f"another program has written {self._storage.address}/{name}: run this again")
        for earlier in [*self._earlier, self._number] if self._number else ():
            with suppress(FileNotFoundError):
                self._storage.filesystem().delete_file(f"{earlier}.json")
        self._earlier, self._number = [], self._number + 1


def replica_positions(table: LakeTable) -> list[ReplicationPosition]:
    """Return the newest position of the replication to each cluster, without damaged ones."""
    folder = table.storage.folder(_FOLDER).filesystem()
    found = folder.get_file_info(fs.FileSelector("", allow_not_found=True))
    positions = []
    for info in found:
        # The replication reports a damaged one.
        with suppress(WritetimeError):
            positions.append(Positions(table, info.base_name).read())
    return [position for position in positions if position is not None]

"""The data source `sstable`: SSTables of a table, as changes.

    spark.dataSource.register(SSTableSource)
    changes = spark.read.format("sstable").load("/backups/shop/orders-5a1c.../snapshots/nightly")
    changes.write.format("sstable").mode("append").option("schema", CQL).save("/restore/orders")

Options of reading: `schema` (CQL text or a file with it; else the snapshot's `schema.cql`, else the columns in the
files' headers), `fields` (those to read, separated by commas, or parts of them, as `amount.value`; all by default),
`on_corrupt` (`fail`, `skip-partition`, `skip-file`), `split_bytes` (uncompressed bytes per task, 64 MiB by default),
`node` (the value of `origin.node`), `first_token` and `last_token` (both included), or `partition_key` (a JSON object,
`{"user_id": 7}`): only the parts of the files that can hold them are read.

Options of writing: `schema` (as above; required), `version` (`nb`, `oa` or `me`), `compressor` (the name of a class, or
`none`) and `block_size` (bytes of rows per entry of a partition's row index).

Each partition of the DataFrame becomes one SSTable. Its changes may have any order, and are merged first, in the memory
of the Python worker. The task writes into a folder of its own attempt, below one of the job in the target folder. Once
all tasks are done, the driver moves the files of the attempts that count into the target folder.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

import pyarrow as pa
from pyarrow import fs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from writetime.changes.model import KINDS, change_schema
from writetime.core.arrow import one_chunk, pc
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.lake.labels import newly_labelled
from writetime.merge.folding import merge
from writetime.schema.table import TableSchema
from writetime.sources.schemas import (
    Selection,
    check_changes,
    option_choice,
    option_count,
    option_fields,
    option_schemas,
    option_tokens,
)
from writetime.sources.worker_end import end_quietly
from writetime.storage.batch import Origin
from writetime.storage.data_writer import COMPRESSORS
from writetime.storage.folders import Folder
from writetime.storage.infer import infer_schema
from writetime.storage.kernel.primitives import tokens
from writetime.storage.locations import Location, entries, find_sstables, parse_name
from writetime.storage.split import Split
from writetime.storage.sstable import OnCorrupt, ScanReport, SSTable
from writetime.storage.sstable_writer import VERSIONS, SSTableWriter

log = logging.getLogger(__name__)

SPLIT_BYTES = 64 << 20
_BLOCK_SIZE = 1 << 16
# Changes that are written at a time.
_BATCH_ROWS = 1 << 16
_NO_COMPRESSOR = "none"
_TOC = "TOC.txt"


@dataclass
class SSTableSplit(InputPartition):
    """A split of one SSTable; `file` is its data file's name, with the same start as the user's path."""

    location: Location
    split: Split
    file: str


class SSTableSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "sstable"

    def schema(self) -> StructType:
        """The fields of the table's changes."""
        return Selection.of(self._table(), option_fields(self.options)).spark()

    def reader(self, schema: StructType) -> "SSTableReader":
        """Return a reader of the fields of this schema, which may be one that was given to Spark."""
        table = self._table()
        return SSTableReader(dict(self.options), table, Selection.given(table, schema))

    def writer(self, schema: StructType, overwrite: bool) -> "SSTableFolderWriter":
        """Return a writer of changes with these fields. Raises WritetimeError: an option is missing or invalid, or
        changes of the table do not have these fields.
        """
        if overwrite:
            raise WritetimeError(
                'the data source sstable overwrites no SSTables: write with mode("append"), and name a new folder or '
                "delete the SSTables first"
            )
        if "schema" not in self.options:
            raise WritetimeError('the data source sstable needs the option schema to write: "CREATE TABLE ..."')
        table = self._table()
        check_changes(table, schema)
        return SSTableFolderWriter(dict(self.options), table)

    def _table(self) -> TableSchema:
        if "schema" in self.options:
            schemas = option_schemas(self.options)
            if len(schemas) != 1:
                raise WritetimeError(f"the option schema holds {pluralize(len(schemas), 'table')}; one was expected")
            return schemas[0]
        return newly_labelled(infer_schema(list(find_sstables(_path(self.options)))))


def _path(options: Any) -> str:
    if "path" not in options:
        raise WritetimeError("the data source sstable needs a path: load(PATH) or save(PATH)")
    return options["path"]


class SSTableReader(DataSourceReader):
    """Reads splits of SSTables, in batches."""

    def __init__(self, options: dict[str, str], table: TableSchema, selection: Selection) -> None:
        self._options = {key.lower(): value for key, value in options.items()}
        self._table = table
        self._selection = selection
        self._tokens = option_tokens(self._options, table)
        self._on_corrupt: OnCorrupt = option_choice(self._options, "on_corrupt", get_args(OnCorrupt))
        self._split_bytes = option_count(self._options, "split_bytes") or SPLIT_BYTES
        self._captured_at = datetime.now(UTC)

    def partitions(self) -> list[InputPartition]:
        """Return the splits of all SSTables at the path."""
        path = _path(self._options)
        scheme = path.split("://")[0] + "://" if "://" in path else ""
        return [
            SSTableSplit(location, split, scheme + location.path("Data.db"))
            for location in find_sstables(path)
            for split in SSTable(location, self._table).splits(self._split_bytes, self._tokens)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split."""
        end_quietly()
        if not isinstance(partition, SSTableSplit):
            return  # Spark adds its own partition if there is none.
        report = ScanReport()
        batches = SSTable(partition.location, self._table).scan(
            self._selection.schema.names,
            split=partition.split,
            tokens=self._tokens,
            on_corrupt=self._on_corrupt,
            report=report,
            origin=Origin("sstable", partition.file, self._captured_at, self._options.get("node")),
        )
        yield from map(self._selection.cut, batches)
        for skipped in report.skipped:
            log.warning("left out: %s", skipped)


@dataclass(frozen=True)
class WrittenAttempt(WriterCommitMessage):
    """The name of the folder with the SSTable of a task's attempt; None if the task had no changes."""

    name: str | None


class SSTableFolderWriter(DataSourceArrowWriter):
    """Writes an SSTable per partition of a DataFrame, and adds them to a folder when all are written."""

    def __init__(self, options: dict[str, str], table: TableSchema) -> None:
        options = {key.lower(): value for key, value in options.items()}
        self._folder = Folder.at(_path(options))
        # Readers of the folder do not look below it.
        self._job = self._folder.below(f"_writing-{uuid.uuid4().hex}")
        self._table = table
        self._version: str = option_choice(options, "version", VERSIONS)
        compressor: str = option_choice(options, "compressor", [*COMPRESSORS, _NO_COMPRESSOR])
        self._compressor = None if compressor == _NO_COMPRESSOR else compressor
        self._block_size = option_count(options, "block_size") or _BLOCK_SIZE

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenAttempt:
        """Merge the changes of a partition, and write the SSTable. It is below the job's folder.

        Raises:
            WritetimeError: a change has an unknown kind or a token that is not that of its key, or the version cannot
                hold one of its times.
        """
        state = merge(map(self._checked, iterator), self._table)
        if not state.num_rows:
            return WrittenAttempt(None)
        # Spark may run two attempts of a task at once.
        attempt = uuid.uuid4().hex
        try:
            self._write_sstable(self._job.below(attempt), state)
        except BaseException:
            _remove(self._job.below(attempt))
            raise
        return WrittenAttempt(attempt)

    def _checked(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the changes with our types. Spark's may differ in what is never null, and in the size of offsets."""
        fields = [field for field in change_schema(self._table) if field.name in batch.schema.names]
        wanted = pa.schema([field for field in fields if field.name != "origin"])
        changes = pa.Table.from_batches([batch]).select(wanted.names).cast(wanted)
        _check_partitions(changes)
        return changes

    def _write_sstable(self, folder: Folder, state: pa.Table) -> None:
        with SSTableWriter(
            folder.address,
            self._table,
            version=self._version,
            compressor=self._compressor,
            block_size=self._block_size,
        ) as writer:
            for batch in state.to_batches(max_chunksize=_BATCH_ROWS):
                writer.write(batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Move the SSTables of these attempts into the folder, with new numbers. If a file cannot be moved, none of
        them stays there.
        """
        attempts = [m.name for m in messages if isinstance(m, WrittenAttempt) and m.name is not None]
        filesystem = self._folder.filesystem
        filesystem.create_dir(self._folder.path, recursive=True)
        moves = self._moves(attempts)
        try:
            for source, target in moves:
                filesystem.move(source, target)
        except BaseException:
            for _, target in moves:
                with suppress(OSError):
                    filesystem.delete_file(target)
            raise
        _remove(self._job)

    def _moves(self, attempts: Sequence[str]) -> list[tuple[str, str]]:
        """Return the old and new path of each file. The TOCs come last, so that readers see no part of the job."""
        filesystem, path = self._folder.filesystem, self._folder.path
        found = []
        for number, attempt in enumerate(attempts, _last_number(filesystem, path) + 1):
            target = Location(filesystem, path, self._version, str(number), "big")
            for source in entries(filesystem, self._job.below(attempt).path):
                if (named := parse_name(filesystem, source)) is not None:
                    found.append((source, target.path(named[1])))
        return sorted(found, key=lambda move: move[1].endswith(_TOC))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Remove the files of all attempts."""
        _remove(self._job)


def _check_partitions(changes: pa.Table) -> None:
    """Require known kinds, and the token of each key: a query of Spark may have changed them."""
    kinds, keys = one_chunk(changes["kind"]), one_chunk(changes["key"])
    if len(unknown := kinds.filter(pc.invert(pc.is_in(kinds, pa.array(KINDS))))):
        raise WritetimeError(f"a change has the kind {unknown[0].as_py()!r}; it must be one of {', '.join(KINDS)}")
    if keys.null_count:
        raise WritetimeError("a change has no key: read the changes with this field, and do not modify it")
    wrong = keys.filter(pc.fill_null(pc.not_equal(one_chunk(changes["token"]), tokens(keys)), True))
    if len(wrong):
        raise WritetimeError(
            f"the change of the key 0x{wrong[0].as_py().hex()} has another token than this key: do not modify either"
        )


def _last_number(filesystem: fs.FileSystem, folder: str) -> int:
    """Return the largest number of an SSTable in a folder. Cassandra 4.0 knows only numbers as identifiers."""
    named = (parse_name(filesystem, path) for path in entries(filesystem, folder))
    return max((int(each[0].id) for each in named if each is not None and each[0].id.isdecimal()), default=0)


def _remove(folder: Folder) -> None:
    """Remove a folder with its files. An attempt that Spark no longer waits for may write there at the same time."""
    try:
        folder.filesystem.delete_dir(folder.path)
    except FileNotFoundError:
        pass
    except OSError as e:
        log.warning("%s could not be removed, and may be deleted: %s", folder.shown, e)

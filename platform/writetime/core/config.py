"""The settings of one Writetime installation, from the environment, a folder of secrets, and `writetime.toml`.

The environment has precedence: a variable such as `WRITETIME_KAFKA__BOOTSTRAP_SERVERS` overrides a file
`kafka__bootstrap_servers` in the folder that `WRITETIME_SECRETS` names, and this file overrides `bootstrap_servers` in
the section `[kafka]` of `writetime.toml`. `WRITETIME_CONFIG` names another settings file. Every setting has a default
that suits one machine. Unknown settings are rejected.
"""

import os
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from writetime.core.errors import WritetimeError
from writetime.core.server_settings import (
    Cassandra,
    Kafka,
    NamedCluster,
    SchemaRegistry,
    SettingsSection,
    Spark,
    ZooKeeper,
    is_loopback,
)
from writetime.core.setting_types import (
    Buckets,
    Days,
    Hours,
    LakePath,
    LocalPath,
    Owner,
    Port,
    QueueName,
    RequestSeconds,
    Seconds,
    SecondsOrNone,
    TableName,
    Text,
    TopicName,
    WebAddress,
    require_distinct,
)
from writetime.core.settings_sources import PREFIX, SecretFiles, TomlFile, Variables, faults, unused

SECRETS_VARIABLE = "WRITETIME_SECRETS"
# The file that an argument of `load` names, while it reads it: pydantic passes no arguments to the sources of settings.
_loaded_file: ContextVar[Path | None] = ContextVar("_loaded_file", default=None)


class Lake(SettingsSection):
    """Where the lake's Delta tables are: a folder, or an `s3a://`, `gs://` or `abfss://` address.

    `storage_options` are passed unchanged to the object store (names of delta-rs: `AWS_REGION`, ...).
    """

    path: LakePath = ".writetime/lake"
    storage_options: dict[str, SecretStr] = Field(default={})
    buckets: Buckets = Field(
        default=16,
        description="Token ranges of a new table, a power of two; fixed from then on. With more, a task needs less "
        "memory.",
    )
    keep_history_days: Days = Field(
        default=7.0, description="How far back a view `as_of` can go; older changes are merged."
    )
    drop_tombstones_hours: Hours = Field(
        default=24.0, description="Minimum time between drops of tombstones, which rewrite the state; 0: never."
    )
    view: Literal["vectors", "rewritten"] = Field(
        default="vectors",
        description="How a view is refreshed: with the changed rows and Delta's deletion vectors, or with all rows, "
        "for readers that do not support deletion vectors.",
    )
    iceberg: bool = Field(
        default=False, description="Whether views and row events are also Iceberg tables, over the same files."
    )
    iceberg_catalog: dict[str, SecretStr] = Field(
        default={},
        description="The catalog of these, by the properties of pyiceberg: `type` (rest or sql), `uri`, ...",
    )
    vacuum_hours: int = Field(
        default=168, ge=1, le=876_600, description="Files that no version needs are deleted after this time."
    )
    cache: Text = Field(default=".writetime/cache", description="A local folder for decoded files; may be deleted.")
    cache_gib: float = Field(
        default=20.0, ge=0, le=1 << 20, description="Maximum size of that folder; 0: nothing is kept."
    )

    @model_validator(mode="after")
    def _known_catalog(self) -> Self:
        """Reject a catalog that would get no tables."""
        if not self.iceberg_catalog:
            return self
        kind = self.iceberg_catalog.get("type")
        if kind is None or kind.get_secret_value() not in {"rest", "sql"} or "uri" not in self.iceberg_catalog:
            raise ValueError(
                'iceberg_catalog needs a uri, and the type "rest" or "sql"; Glue, Nessie, Polaris and Unity have REST '
                "endpoints"
            )
        if not self.iceberg:
            raise ValueError("iceberg_catalog needs iceberg = true")
        return self


Mask = Literal["hash", "null"]
"""A text becomes its SHA-256 in hexadecimal digits; or a column is not written."""


class TableEntry(SettingsSection):
    """A table that the platform follows, as `[tables.<keyspace>.<table>]`; see `writetime.lake.followed_tables`."""

    description: str | None = Field(default=None, description="The meaning of its rows.")
    owners: list[Owner] = Field(default=[], description='Its owners: mail addresses, or names such as "team:orders".')
    capture: bool = Field(
        default=True, description="Whether its changes are captured live; if not, only from snapshots."
    )
    row_events: bool = Field(default=True, description="Whether row events are found and published.")
    snapshots: list[Text] = Field(
        default=[],
        description="Folders or URLs of its snapshots or backups; without any, Dagster takes them on this machine.",
    )
    expect: list[dict[str, Any]] = Field(
        default=[], description="Expectations of its view: each the `type` of a Great Expectation, with its arguments."
    )
    max_lag: int = Field(
        default=100_000, ge=0, description="Number of changes waiting to land at which Dagster's check warns."
    )
    replicate_to: Text | None = Field(
        default=None, description="A cluster, `[clusters.NAME]`, to which `writetime follow` replicates the table."
    )
    replicate_where: Text | None = Field(
        default=None, description="Only partitions whose key meets this condition in SQL are replicated."
    )
    replicate_mask: dict[str, Mask] = Field(
        default={}, description="Columns of which the other cluster gets the hash of the text, or nothing."
    )


class Alerts(SettingsSection):
    """The receivers of alerts about failed runs and checks, in addition to the log."""

    owners: list[Owner] = Field(
        default=[], description="Owners of assets that belong to no table, or whose table's entry names none."
    )
    webhook: WebAddress | None = Field(default=None, description="A URL that accepts JSON with `text`, as chats do.")
    dagster_url: str | None = Field(
        default=None, pattern=r"^https?://[^@\s]+$", description="Dagster's web UI; alerts then link to their runs."
    )
    reports: LocalPath = Field(default=Path(".writetime/reports"), description="The folder for the report of each run.")


class RowEvents(SettingsSection):
    """Row events, in the lake and in Kafka, one topic `row_events.<keyspace>.<table>` per table."""

    partitions: int = Field(default=4, ge=1, le=100_000, description="For a new topic; each has a token range.")
    format: Literal["avro", "debezium", "flat"] = Field(
        default="avro",
        description="The messages: Avro, JSON in Debezium's envelope, or JSON of the row with fields about the event.",
    )
    json_schemas: bool = Field(
        default=True, description="Whether JSON has Connect's schemas, as Connect's JSON converter expects by default."
    )
    tombstones: bool = Field(
        default=False,
        description="Whether a message without a value follows each deletion, for compacted topics; for JSON only.",
    )
    keep_days: Days | None = Field(
        default=None, description="How long the lake keeps each published event; forever if not set."
    )

    @model_validator(mode="after")
    def _one_key_per_row(self) -> Self:
        """Reject tombstones after Avro: its key is the partition's, so a tombstone would delete all of its rows."""
        if self.tombstones and self.format == "avro":
            raise ValueError('tombstones need the format "debezium" or "flat", whose keys are those of rows')
        return self


class Capture(SettingsSection):
    """`writetime agent`: the changes of one Cassandra node, from its `cdc_raw`, or of ScyllaDB tables, to Kafka."""

    source: Literal["commitlog", "scylla-cdc"] = "commitlog"
    tables: list[TableName] = Field(default=[], description="As keyspace.table: those whose CDC logs are read.")
    node: Text | None = Field(default=None, description="The node's address; needed if the cluster has other nodes.")
    cdc_raw: LocalPath | None = Field(
        default=None, description="The node's cdc_raw_directory. Defaults to the value that the node reports."
    )
    state_dir: LocalPath = Field(default=Path(".writetime/capture"), description="Where the agent keeps its progress.")
    replicas: Literal["all", "one"] = Field(
        default="all", description="Which replicas of a write publish it: each, or one by agreement of the agents."
    )
    snapshot: Literal["initial", "always", "never", "schema-only"] = Field(
        default="initial", description="The snapshot of a table that is published along with its live changes."
    )
    snapshot_folders: dict[str, list[Text]] = Field(
        default={},
        description="For ScyllaDB tables, as keyspace.table: the folders or URLs of a snapshot of each node.",
    )
    finished: Literal["delete", "archive", "keep"] = "delete"
    archive: Text | None = Field(default=None, description="A folder or URL for published segments.")
    segments: list[Text] = Field(
        default=[], description="Folders or URLs of segments, each of one node, that Dagster publishes."
    )
    aside: LocalPath | None = Field(default=None, description="Where faulty segments go; default: in the state folder.")
    partitions: int = Field(default=4, ge=1, le=100_000, description="For a new topic; each has a token range.")
    poll_seconds: Seconds = Field(default=0.02, description="How often the node's segments are listed.")
    segments_seconds: Seconds = Field(default=1.0, description="How often `publish-segments --follow` looks for more.")
    stale_seconds: Seconds = Field(
        default=900.0, description="Age of a table's data in the lake at which Dagster's check warns."
    )
    backlog_warning: float = Field(
        default=0.5, gt=0, le=1, description="Share of the node's cdc_total_space at which to warn: at 1 writes fail."
    )
    metrics_port: Port | None = Field(default=None, description="Where the agent serves Prometheus metrics.")
    metrics_host: Text = "127.0.0.1"

    @model_validator(mode="after")
    def _named(self) -> Self:
        """Reject settings that would capture nothing, or less than they seem to."""
        if self.source == "scylla-cdc" and not self.tables:
            raise ValueError('source = "scylla-cdc" needs tables, such as ["shop.orders"]')
        if self.source == "commitlog" and self.tables:
            raise ValueError("tables are only for scylla-cdc: a node's agent captures all tables with cdc = true")
        if self.source == "scylla-cdc" and self.replicas == "one":
            raise ValueError('replicas = "one" is for the agents of nodes: a log of ScyllaDB has each row once already')
        if self.finished == "archive" and self.archive is None:
            raise ValueError('finished = "archive" needs archive: the folder or URL for published segments')
        if faults := sorted(self.snapshot_folders.keys() - set(self.tables)):
            raise ValueError(f"snapshot_folders has {faults[0]}, which is not among tables: only those of ScyllaDB are")
        missing = [name for name in self.tables if not self.snapshot_folders.get(name)]
        if missing and self.snapshot in ("initial", "always"):
            raise ValueError(
                f'snapshot = "{self.snapshot}" needs snapshot_folders of {missing[0]}: ScyllaDB takes no snapshot '
                'over the network. Name them, or set snapshot = "schema-only" and run `writetime backfill`'
            )
        return self


class Follow(SettingsSection):
    """`writetime follow`: changes land, row events are published and views are refreshed, all the time."""

    events_seconds: Seconds = Field(
        default=0.1, description="How often changes land and row events are published. Each time is a commit."
    )
    view_seconds: Seconds = Field(default=1.0, description="How often a view is refreshed, if something changed.")
    share: bool = Field(default=False, description="Whether several programs share the tables, through ZooKeeper.")
    spark_changes: int | None = Field(
        default=None, ge=1, description="Number of waiting changes from which a batch runs in Spark. Default: never."
    )
    metrics_port: Port | None = Field(default=None, description="Where it serves Prometheus metrics.")
    metrics_host: Text = "127.0.0.1"


class ScyllaCdc(SettingsSection):
    """How the logs of ScyllaDB's change data capture are read, and the system tables that describe them."""

    window_seconds: Seconds = Field(default=30.0, description="A stream advances by whole windows.")
    confidence_seconds: SecondsOrNone = Field(default=30.0, description="How old a window is before it is read.")
    rescan_seconds: SecondsOrNone = Field(
        default=0.0,
        description="For late rows: read each window again after this time, and closed sets of streams for this time "
        "after their end; 0: do not.",
    )
    batch_seconds: Seconds = Field(default=3600.0, description="Longest interval of write times in a batch.")
    log_ttl_seconds: int | None = Field(
        default=None,
        ge=0,
        description="How long the log keeps rows (0: forever). Defaults to the value in `table_options`.",
    )
    empty_updates: Literal["fail", "pass"] = Field(
        default="fail", description="pass: for tables with updates without values."
    )
    tasks: int = Field(default=8, ge=1, description="Maximum number of Spark tasks per batch.")
    streams_at_once: int = Field(default=16, ge=1, description="Queries for streams that a task sends at once.")
    generation_times: TableName = "system_distributed.cdc_generation_timestamps"
    generation_streams: TableName = "system_distributed.cdc_streams_descriptions_v2"
    tablet_times: TableName = "system.cdc_timestamps"
    tablet_streams: TableName = "system.cdc_streams"
    table_options: TableName = "system_schema.scylla_tables"
    truncations: TableName = "system.truncated"


class Ingest(SettingsSection):
    """HTTP events -> Kafka -> the table `user_events`."""

    host: Text = "127.0.0.1"
    port: Port = 18080
    tokens: list[Annotated[SecretStr, Field(min_length=16, max_length=1024)]] = Field(
        default=[], description="Bearer tokens, any of which admits a caller; needed if `host` is not loopback."
    )
    tls_certificate_file: LocalPath | None = Field(default=None, description="With its key: HTTPS instead of HTTP.")
    tls_key_file: LocalPath | None = None
    max_connections: int = Field(default=1_000, ge=1, description="Connections beyond this number are answered 503.")
    request_seconds: RequestSeconds = Field(
        default=60.0, description="Time limit for a call's headers and body, then 408."
    )
    max_unfinished_bytes: int = Field(
        default=268_435_456,
        ge=1,
        description="Maximum bytes in the bodies of all unfinished calls, then 429. A call "
        "takes a few times the memory of its body.",
    )
    topic: TopicName = "user-events"
    dead_letter_topic: TopicName = "user-events.dead"
    partitions: int = Field(default=4, ge=1, le=100_000)
    group: Text = "writetime-sink"
    max_event_bytes: int = Field(default=262_144, ge=1024, description="A larger event is answered 413.")
    max_batch_bytes: int = Field(default=8_388_608, ge=1024, description="A larger call is answered 413.")
    max_batch_events: int = Field(default=1_000, ge=1, description="A call with more events is answered 413.")
    max_pending_events: int = Field(default=20_000, ge=1, description="Maximum of unacknowledged events, then 429.")
    ack_timeout_seconds: RequestSeconds = Field(
        default=10.0, description="Time limit for the broker's acknowledgement, then 503."
    )
    mode: Literal["lwt", "lwt-batch", "upsert"] = "lwt-batch"
    bucket: Literal["none", "day"] = "none"
    batch_rows: int = Field(default=32, ge=1, le=100, description="Maximum number of rows of one partition in a batch.")
    max_in_flight: int = Field(default=100, ge=1, description="Maximum number of writes in flight (the bulkhead).")
    max_buffered_events: int = Field(
        default=10_000, ge=1, description="Reading pauses at this number of unfinished events, and at 256 MiB of them."
    )
    idempotency_window_seconds: int = Field(
        default=7 * 86_400, ge=60, le=20 * 365 * 86_400, description="How long an Idempotency-Key is remembered."
    )
    commit_interval_seconds: Seconds = 1.0
    session_timeout_seconds: RequestSeconds = Field(
        default=60.0, gt=1, description="After this time a silent sink loses its partitions."
    )
    sink_metrics_port: Port | None = Field(
        default=None, description="Where `writetime sink` serves Prometheus metrics."
    )
    sink_metrics_host: Text = "127.0.0.1"
    drain_seconds: Seconds = Field(
        default=15.0, description="How long a rebalance or a stop waits for writes in flight."
    )
    max_events_per_run: int = Field(
        default=500_000, ge=1, description="Maximum number of events in one run of the Dagster asset."
    )

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        """Reject an unauthenticated ingress on a non-loopback address."""
        if not self.tokens and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} can be reached from other machines, so callers need tokens: set ingest.tokens "
                "(several, of 16 characters or more), or leave host at 127.0.0.1"
            )
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file must be set together")
        if self.topic == self.dead_letter_topic:
            raise ValueError("dead_letter_topic is topic: the sink would read its own dead letters; name another one")
        return self

    @property
    def table(self) -> str:
        """The table that events are stored in."""
        return "user_events_by_day" if self.bucket == "day" else "user_events"

    @property
    def partition_key(self) -> str:
        """The columns of its partition key, as CQL lists them."""
        return "user_id, day" if self.bucket == "day" else "user_id"


class Queue(SettingsSection):
    """The settings of one queue. Limits are for all workers together; each shard has its part of them."""

    shards: int = Field(default=16, ge=1, le=1024, description="For a new queue; fixed from then on.")
    priority: int = Field(default=0, description="A worker of several queues serves the higher one first.")
    concurrency: int | None = Field(default=None, ge=1, description="Items that run at once; at least one per shard.")
    rate: float | None = Field(default=None, gt=0, le=1e6, description="Items started per second.")
    key_concurrency: int = Field(default=1, ge=1, description="Items of one key that run at once; 1 keeps their order.")
    key_rate: float | None = Field(default=None, gt=0, le=1e6, description="Items of one key started per second.")
    max_attempts: int = Field(default=10, ge=1, description="After this many attempts, an item is a dead letter.")
    time_limit_seconds: Seconds = Field(
        default=3600.0,
        description="An attempt whose handler runs longer has failed; the worker continues without it. Items may have "
        "their own.",
    )
    backoff_base_seconds: Seconds = Field(default=1.0, description="Pause after the first failure; then doubled.")
    backoff_cap_seconds: Seconds = 300.0
    max_depth: int | None = Field(default=None, ge=0, description="Unfinished items above which Dagster warns.")


class WorkQueue(SettingsSection):
    """Queues of work items in the database, and their workers."""

    queues: dict[str, Queue] = Field(default={}, description="Queues with other settings than the defaults, by name.")
    lease_seconds: Seconds = Field(default=300.0, description="After this time a silent worker's shards go to others.")
    threads: int = Field(default=16, ge=1, description="Items that one worker runs at once.")
    batch_rows: int = Field(default=256, ge=1, le=1000, description="Maximum number of items in one conditional batch.")
    bucket_seconds: int = Field(
        default=3600, ge=1, le=100 * 366 * 86_400, description="For a new queue; fixed from then on."
    )
    close_after_seconds: Seconds = Field(
        default=900.0, description="After its end, a bucket stays open for late inserts for this time."
    )
    keep_closed_hours: Hours = Field(default=168.0, gt=0, description="Closed buckets are dropped after this time.")
    poll_seconds: Seconds = Field(default=0.01, description="Pause after a poll that found items.")
    idle_poll_seconds: Seconds = Field(default=1.0, description="The pause grows to this while nothing is found.")
    overlap_seconds: SecondsOrNone = Field(
        default=2.0, description="How far polls look back: a rescan finds slower inserts."
    )
    rescan_seconds: Seconds = Field(default=30.0, description="How often all unsettled items are read again.")
    settle_seconds: SecondsOrNone = Field(default=30.0, description="Younger items are part of every rescan.")
    clock_tolerance_seconds: SecondsOrNone = Field(default=5.0, description="How far the nodes' clocks may differ.")
    enqueue_timeout_seconds: RequestSeconds = Field(default=10.0, description="How long an insert is retried.")
    max_payload_bytes: int = Field(default=262_144, ge=1024, description="A larger item is rejected.")
    drain_seconds: Seconds = Field(default=30.0, description="How long a stop waits for running items.")
    hints: bool = Field(default=False, description="Also wake up on `changes.<keyspace>.queue_items` in Kafka.")
    stuck_seconds: Seconds = Field(default=900.0, description="Age of an unfinished item at which Dagster warns.")
    metrics_port: Port | None = Field(default=None, description="Where `writetime work` serves Prometheus metrics.")
    metrics_host: Text = "127.0.0.1"

    def queue(self, name: str) -> Queue:
        """Return the settings of a queue."""
        return self.queues.get(name, Queue())

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Reject a bucket that could close while an insert into it is still being repeated."""
        if self.close_after_seconds < 2 * self.enqueue_timeout_seconds:
            raise ValueError("close_after_seconds must be twice enqueue_timeout_seconds or more")
        for name, queue in self.queues.items():
            if queue.concurrency is not None and queue.concurrency < queue.shards:
                raise ValueError(
                    f"queue {name}: concurrency {queue.concurrency} is less than {queue.shards}, its number of "
                    "shards, each of which runs at least one item; give it fewer shards"
                )
        return self


class Embedded(SettingsSection):
    """The servers that `writetime up` starts on this machine, at the addresses of the sections above."""

    servers: list[Literal["zookeeper", "kafka", "cassandra"]] = Field(
        default=["zookeeper", "kafka", "cassandra"], description="The servers to start; the others are external."
    )
    home: LocalPath = Path(".writetime/servers")
    cassandra_storage_port: Port = 17000
    cassandra_heap_mb: int = Field(default=768, ge=64)
    commitlog_sync: Literal["batch", "periodic"] = "batch"
    kafka_controller_port: Port = 19093
    kafka_heap_mb: int = Field(default=384, ge=64)
    start_timeout_seconds: RequestSeconds = 120.0


class Replay(SettingsSection):
    """Replayable pub/sub."""

    publish_timeout_seconds: RequestSeconds = Field(default=30.0, description="How long a publisher retries.")
    poll_seconds: Seconds = Field(
        default=1.0, description="How often an idle subscriber looks for a batch that ZooKeeper does not have."
    )
    queues: list[QueueName] = Field(default=[], description="Queues that Dagster copies into the lake.")
    keep_days: dict[str, Annotated[Days, Field(gt=0)]] = Field(
        default={}, description="Queues whose old batches `writetime replay trim` deletes; all others keep theirs."
    )
    batches_per_run: int = Field(default=500, ge=1, description="Maximum number of batches in one Dagster run.")
    time_limit_seconds: Seconds = Field(
        default=3600.0, description="How long `writetime replay work` runs a handler for one batch before it ends."
    )
    drain_seconds: Seconds = Field(default=30.0, description="How long a stop waits for the batch in progress.")

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        require_distinct(self.queues)
        return self


class Dagster(SettingsSection):
    """The platform in Dagster."""

    automation: bool = Field(
        default=False,
        description="Whether all schedules and sensors are on, except those that were turned off in the web UI.",
    )


class Settings(BaseSettings):
    """All settings. Create it with `load()`, which finds the file and turns mistakes into one readable error."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    cassandra: Cassandra = Cassandra()
    clusters: dict[str, NamedCluster] = Field(
        default={},
        description="Other databases by names of your choice, for `writetime verify --against` and `replicate_to`.",
    )
    kafka: Kafka = Kafka()
    schema_registry: SchemaRegistry = SchemaRegistry()
    zookeeper: ZooKeeper = ZooKeeper()
    replay: Replay = Replay()
    spark: Spark = Spark()
    lake: Lake = Lake()
    tables: dict[str, Any] = Field(
        default={}, description="By keyspace and name. `writetime.lake.followed_tables` reads each entry separately."
    )
    alerts: Alerts = Alerts()
    row_events: RowEvents = RowEvents()
    capture: Capture = Capture()
    follow: Follow = Follow()
    scylla_cdc: ScyllaCdc = ScyllaCdc()
    ingest: Ingest = Ingest()
    workqueue: WorkQueue = WorkQueue()
    dagster: Dagster = Dagster()
    embedded: Embedded = Embedded()

    def of_cluster(self, name: str) -> Self:
        """Return the settings with one of `clusters` as the database. Raise WritetimeError if there is none."""
        if name not in self.clusters:
            known = ", ".join(sorted(self.clusters)) or "none"
            raise WritetimeError(
                f"the settings have no cluster {name!r} (known: {known}); add a section [clusters.{name}] with the "
                "same settings as [cassandra]"
            )
        return self.model_copy(update={"cassandra": self.clusters[name]})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: arguments of a test, then the environment, then the secrets' folder, then the file."""
        del env_settings, dotenv_settings
        sources = [init_settings, Variables(settings_cls)]
        if folder := os.environ.get(SECRETS_VARIABLE):
            sources.append(
                SecretFiles(
                    file_secret_settings,
                    secrets_dir=folder,
                    secrets_dir_missing="error",
                    secrets_prefix="",
                    secrets_nested_delimiter="__",
                )
            )
        return *sources, TomlFile(settings_cls, config_path())


class InvalidSettings(WritetimeError):
    """Settings are unknown or invalid. `faults` has a sentence for each."""

    def __init__(self, where: str, faults: Sequence[str]) -> None:
        super().__init__(f"{where}: {'; '.join(faults)}")
        self.faults = [f"{where}: {fault}" for fault in faults]


def config_path() -> Path:
    """Return the path of the settings file: `WRITETIME_CONFIG`, else `writetime.toml` in the working folder."""
    return _loaded_file.get() or Path(os.environ.get("WRITETIME_CONFIG", "writetime.toml"))


def load(file: Path | None = None, field: str = "settings_file", **overrides: Any) -> Settings:
    """Read the settings of a file, by default that of `config_path`. `field` is the user's name of the argument, for
    errors. Keyword arguments, such as `lake={"buckets": 2}`, override settings one by one. Raises InvalidSettings:
    settings are unknown or invalid; WritetimeError: the file that `field` or `WRITETIME_CONFIG` names is missing, or it
    is not TOML.
    """
    path = file or config_path()
    if file and not path.is_file():
        raise WritetimeError(f"{field} names {path}, which is not a file; create or correct it")
    if "WRITETIME_CONFIG" in os.environ and not path.is_file():
        raise WritetimeError(f"WRITETIME_CONFIG names {path}, which is not a file; create it or unset the variable")
    loading = _loaded_file.set(file)
    # The variables that name the file and the folder are not settings: no field is called `config` or `secrets`.
    try:
        settings = Settings(**overrides)
    except ValidationError as e:
        raise InvalidSettings(f"settings ({path} and WRITETIME_* variables)", faults(e, Settings)) from None
    except SettingsError as e:
        raise WritetimeError(f"settings (WRITETIME_* variables and {SECRETS_VARIABLE}): {e.__cause__ or e}") from None
    except ValueError as e:
        raise WritetimeError(f"{path} is not valid TOML: {e}") from None
    finally:
        _loaded_file.reset(loading)
    if ignored := unused(Settings, os.environ.get(SECRETS_VARIABLE)):
        raise InvalidSettings("settings", ignored)
    return settings

"""The names of assets and pools, and their columns, addresses, documents, owners, tags and kinds in the web UI."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import dagster as dg
import pyarrow as pa

from writetime.core.config import Settings
from writetime.delta.storage import lake_storage
from writetime.lake.followed_tables import FollowedTable
from writetime.schema.table import TableSchema as CqlSchema

# The parts of a followed table, with the groups of their assets: its source, then its stages.
PARTS = {
    "table": "sources",
    "snapshots": "backfill",
    "backfill": "backfill",
    "topic": "capture",
    "changes": "changes",
    "state": "changes",
    "view": "views",
    "row_events": "row_events",
    "row_topic": "row_events",
    "replica": "replication",
    # Checks with an identifier of their own.
    "lag_and_freshness": "changes",
}
# The parts that are Delta tables of the lake, and have the names of their folders.
_IN_LAKE = {"changes", "state", "view", "row_events"}
# Files of the repository that pyproject.toml names.
_FILES = "https://github.com/writetime/writetime/blob/main"
_REFERENCES = "dagster/code_references"
# The longest value that Dagster accepts in a tag. ScyllaDB's names may be longer.
_TAG_CHARACTERS = 63
# Documents of the asset groups that belong to no table.
_DOCUMENTS = {
    "sources": "docs/ingest.md",
    "ingest": "docs/ingest.md",
    "workqueue": "docs/workqueue.md",
    "replay": "docs/replay.md",
    "capture": "docs/capture.md",
}


def key_of(table: str, part: str) -> dg.AssetKey:
    """Return the key of an asset of the table `keyspace.table`, such as `keyspace/table/table_view`. The key of the
    table itself is `keyspace/table/table`.

    The last part names the table, because graphs show only the last part of a key.
    """
    *keyspace, name = table.split(".", 1)
    return dg.AssetKey([*keyspace, name, name if part == "table" else f"{name}_{part}"])


def pool_of(table: str, part: str) -> str:
    """Return the pool of an asset. It prevents that two runs do the same work at once."""
    return key_of(table, part).to_python_identifier()


def documents(*paths: str) -> dict[str, dg.CodeReferencesMetadataValue]:
    """Return the metadata that links an asset to files of the repository: documents, CQL."""
    references = [dg.UrlCodeReference(url=f"{_FILES}/{path}", label=path) for path in paths]
    return {_REFERENCES: dg.CodeReferencesMetadataValue(code_references=[*references])}


def documented(definitions: dg.Definitions, settings: Settings) -> dg.Definitions:
    """Return the definitions of assets that belong to no table, with their common attributes: the owners of the
    settings, the document of their group, and the kind of the database.
    """

    def complete(spec: dg.AssetSpec) -> dg.AssetSpec:
        given = {} if _REFERENCES in spec.metadata else documents(_DOCUMENTS[str(spec.group_name)])
        completed = spec.merge_attributes(owners=settings.alerts.owners, metadata=given)
        return _with_kind_of_database(completed, settings)

    return with_specs(definitions, complete)


def with_specs(definitions: dg.Definitions, change: Callable[[dg.AssetSpec], dg.AssetSpec]) -> dg.Definitions:
    """Return the definitions with each asset's spec changed."""
    return changed(
        definitions, assets=dg.map_asset_specs(change, cast("Iterable[dg.AssetSpec]", definitions.assets or []))
    )


def changed(definitions: dg.Definitions, **parts: Any) -> dg.Definitions:
    """Return the definitions with other parts, such as `sensors`."""
    names = ("assets", "schedules", "sensors", "jobs", "resources", "executor", "loggers", "asset_checks", "metadata")
    return dg.Definitions(**{name: getattr(definitions, name) for name in names} | parts)


def of_table(
    assets: Sequence[dg.AssetsDefinition | dg.AssetSpec], table: FollowedTable, settings: Settings
) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Return a table's assets with their common attributes: owners, tags of keyspace, table and stage, the kind of the
    database, and the name in the database or the address in the lake.
    """
    stages = {key_of(table.name, part): part for part in PARTS}
    keyspace, name = table.name.split(".", 1)
    tags = {"writetime/keyspace": keyspace[:_TAG_CHARACTERS], "writetime/table": name[:_TAG_CHARACTERS]}
    owners = table.entry.owners or settings.alerts.owners
    folder = lake_storage(settings).folder(table.name)

    def complete(spec: dg.AssetSpec) -> dg.AssetSpec:
        stage = stages[spec.key]
        where = {"dagster/uri": folder.folder(stage).address} if stage in _IN_LAKE else {}
        if stage == "table":
            where = {"dagster/table_name": table.name}
        completed = spec.merge_attributes(owners=owners, tags={**tags, "writetime/stage": stage}, metadata=where)
        return _with_kind_of_database(completed, settings)

    return [*dg.map_asset_specs(complete, assets)]


def _with_kind_of_database(spec: dg.AssetSpec, settings: Settings) -> dg.AssetSpec:
    """Replace the kind `cassandra`, which assets use for the database, where the settings name ScyllaDB's logs."""
    if settings.capture.source != "scylla-cdc" or "cassandra" not in spec.kinds:
        return spec
    return spec.replace_attributes(kinds=(spec.kinds - {"cassandra"}) | {"scylladb"})


def cql_columns(schema: CqlSchema | None) -> dict[str, dg.TableSchema]:
    """Return the metadata that shows a table's columns with their CQL types; nothing if its schema is not known."""
    return {} if schema is None else {"dagster/column_schema": dg.TableSchema([*_columns(schema)])}


def view_columns(schema: CqlSchema, view: pa.Schema) -> dict[str, dg.TableSchema]:
    """Return the metadata that shows the columns of a table's view, each with its CQL type and its place in the key.

    Args:
        schema: the table's.
        view: the Arrow schema of the view, with the columns of the table in their order.
    """
    described = zip(_columns(schema), view, strict=True)
    columns = [
        dg.TableColumn(
            field.name, str(field.type), f"CQL: {cql.type}. {cql.description or ''}".rstrip(), cql.constraints
        )
        for cql, field in described
    ]
    return {"dagster/column_schema": dg.TableSchema(columns)}


def arrow_columns(schema: pa.Schema) -> dict[str, dg.TableSchema]:
    """Return the metadata that shows the columns of a table of the lake."""
    return {"dagster/column_schema": dg.TableSchema([dg.TableColumn(f.name, str(f.type)) for f in schema])}


def _columns(schema: CqlSchema) -> Sequence[dg.TableColumn]:
    key = dg.TableColumnConstraints(nullable=False)
    return [
        *(dg.TableColumn(c.name, str(c.type), "Partition key.", key) for c in schema.partition_key),
        *(dg.TableColumn(c.name, str(c.type), "Clustering key.") for c in schema.clustering),
        *(dg.TableColumn(c.name, str(c.type), "Static: one per partition.") for c in schema.static),
        *(dg.TableColumn(c.name, str(c.type)) for c in schema.regular),
    ]

"""The names of the assets of a followed table, and the columns, documents and owners that the web UI shows.

What belongs here: keys, pools, column schemas, references. Not here: assets.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from dagster import (
    AssetKey,
    AssetSpec,
    CodeReferencesMetadataValue,
    Definitions,
    LocalFileCodeReference,
    TableColumn,
    TableColumnConstraints,
    TableSchema,
)

from writetime.schema.table import TableSchema as CqlSchema

_ROOT = Path(__file__).parents[1]
_REFERENCES = "dagster/code_references"
# Documents of the asset groups that belong to no table.
_DOCUMENTS = {
    "sources": "docs/ingest.md",
    "ingest": "docs/ingest.md",
    "workqueue": "docs/workqueue.md",
    "replay": "docs/replay.md",
    "capture": "docs/capture.md",
}


def key_of(table: str, part: str) -> AssetKey:
    """Return the key of an asset of the table `keyspace.table`: its source `table`, its `topic`, its `view`, ..."""
    return AssetKey([table, part])


def pool_of(table: str, part: str) -> str:
    """Return the pool of an asset. It keeps two runs from doing the same work at once."""
    return key_of(table, part).to_python_identifier()


def documents(*paths: str) -> dict[str, CodeReferencesMetadataValue]:
    """Return the metadata that links an asset to files of the repository: documents, CQL."""
    references = [LocalFileCodeReference(file_path=str(_ROOT / path), label=path) for path in paths]
    return {_REFERENCES: CodeReferencesMetadataValue(code_references=list(references))}


def documented(definitions: Definitions, owners: Sequence[str]) -> Definitions:
    """Return definitions with the common metadata of the platform's own assets: owners, and the document of their
    stage.
    """

    def complete(spec: AssetSpec) -> AssetSpec:
        given = {} if _REFERENCES in spec.metadata else documents(_DOCUMENTS[str(spec.group_name)])
        return spec.merge_attributes(owners=owners, metadata=given)

    return definitions.map_asset_specs(func=complete)


def cql_columns(schema: CqlSchema | None) -> dict[str, TableSchema]:
    """Return the metadata that shows a table's columns with their CQL types; nothing if its schema is not known."""
    return {} if schema is None else {"dagster/column_schema": TableSchema([*_columns(schema)])}


def arrow_columns(schema: pa.Schema) -> dict[str, TableSchema]:
    """Return the metadata that shows the columns of a table of the lake."""
    return {"dagster/column_schema": TableSchema([TableColumn(f.name, str(f.type)) for f in schema])}


def _columns(schema: CqlSchema) -> list[TableColumn]:
    key = TableColumnConstraints(nullable=False)
    return [
        *(TableColumn(c.name, str(c.type), "Partition key.", key) for c in schema.partition_key),
        *(TableColumn(c.name, str(c.type), "Clustering key.") for c in schema.clustering),
        *(TableColumn(c.name, str(c.type), "Static: one per partition.") for c in schema.static),
        *(TableColumn(c.name, str(c.type)) for c in schema.regular),
    ]

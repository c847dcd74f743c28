"""The part of a table that is replicated, as for a staging cluster: some partitions, and masked columns."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from writetime.changes.model import change_schema, field_name
from writetime.core.arrow import one_chunk
from writetime.core.config import Mask, TableEntry
from writetime.core.errors import WritetimeError
from writetime.files.row_form import to_micros
from writetime.lookup.filtering import numbers_where
from writetime.schema.table import TableSchema
from writetime.schema.types import Native

_TEXTS = (Native("text"), Native("ascii"))


@dataclass(frozen=True)
class ReplicatedPart:
    """The partitions that meet a condition in SQL on the columns of the partition key, and the masked columns."""

    where: str | None = None
    mask: Mapping[str, Mask] = field(default_factory=dict)

    @classmethod
    def of_entry(cls, entry: TableEntry) -> "ReplicatedPart":
        """Return the part that a table's entry names."""
        return cls(entry.replicate_where, entry.replicate_mask)

    @property
    def text(self) -> str:
        """A text that differs between parts; empty for a whole table."""
        return "" if self.is_whole else repr((self.where, sorted(self.mask.items())))

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out or masked."""
        return self.where is None and not self.mask

    def require_fit(self, schema: TableSchema) -> None:
        """Raise a WritetimeError if a table does not have what is selected."""
        columns = {column.name: column for column in schema.static + schema.regular}
        for name, mask in self.mask.items():
            if name not in columns:
                raise WritetimeError(
                    f"{schema.full_name}: replicate_mask names {name}, which is no static or regular column; correct it"
                )
            if mask == "hash" and columns[name].type not in _TEXTS:
                raise WritetimeError(
                    f"{schema.full_name}: {name} is {columns[name].type}, and only texts can be hashed: set "
                    f'replicate_mask.{name} = "null"'
                )
        if self.where is not None:
            self._chosen(change_schema(schema).empty_table(), schema)

    def schema(self, schema: TableSchema) -> TableSchema:
        """Return a table without the columns that are not written."""
        static, regular = (
            tuple(column for column in columns if self.mask.get(column.name) != "null")
            for columns in (schema.static, schema.regular)
        )
        return replace(schema, static=static, regular=regular)

    def of(self, merged: pa.Table, schema: TableSchema) -> pa.Table:
        """Return the selected part of merged changes, with masked values."""
        if self.where is not None:
            merged = merged.take(self._chosen(merged, schema))
        for name in (name for name, mask in self.mask.items() if mask == "hash"):
            column = next(c for c in schema.static + schema.regular if c.name == name)
            place = merged.schema.get_field_index(field_name(column))
            merged = merged.set_column(place, merged.schema.field(place), _hashed(one_chunk(merged.column(place))))
        return merged

    def _chosen(self, merged: pa.Table, schema: TableSchema) -> pa.Array:
        assert self.where is not None
        keys = replace(schema, clustering=(), static=(), regular=())
        rows = pa.table({c.name: merged[field_name(c)] for c in schema.partition_key})
        try:
            return numbers_where(to_micros(rows, keys), self.where)
        except WritetimeError as e:
            raise WritetimeError(
                f"{schema.full_name}: replicate_where uses other columns than those of the partition "
                f"key, or is no condition ({e}); correct it"
            ) from None


def _hashed(cells: pa.StructArray) -> pa.StructArray:
    """Return cells of texts with hashed values."""
    fields = list(cells.type)
    arrays = cells.flatten()
    place = cells.type.get_field_index("value")
    texts = arrays[place].dictionary_encode()
    digests = pa.array(
        [hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest() for text in texts.dictionary.to_pylist()],
        fields[place].type,
    )
    arrays[place] = digests.take(texts.indices)
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=cells.is_null())

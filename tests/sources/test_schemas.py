"""Options of the data sources."""

from pathlib import Path

import pytest

from writetime.core.errors import WritetimeError
from writetime.sources.commitlog import CommitLogSource
from writetime.sources.schemas import option_count, option_schemas
from writetime.sources.sstable import SSTableSource

CQL = "create  table shop.orders (id int PRIMARY KEY)"


@pytest.mark.parametrize("name", ["schema.cql", "create_tables.cql", "CREATE.cql"])
def test_a_schema_is_text_or_the_path_of_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(CQL)
    for option in (CQL, str(tmp_path / name)):
        assert [schema.full_name for schema in option_schemas({"schema": option})] == ["shop.orders"]


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "64m", "", "\u00b2"])
def test_a_number_that_makes_no_progress(tmp_path: Path, value: str) -> None:
    """A split of no bytes has no end, and a batch of no segments does not advance."""
    for source, name in ((SSTableSource, "split_bytes"), (CommitLogSource, "segments_per_batch")):
        made = source({"schema": CQL, "path": str(tmp_path), name: value})
        for reader in (made.reader, made.streamReader)[: 1 if source is SSTableSource else 2]:
            with pytest.raises(WritetimeError, match=f"the option {name} is {value!r}; it must be a positive number"):
                reader(made.schema())
    assert option_count({"split_bytes": "7"}, "split_bytes") == 7
    assert option_count({}, "split_bytes") is None

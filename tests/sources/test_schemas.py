"""The option `schema` of the data sources."""

from pathlib import Path

import pytest

from writetime.sources.schemas import option_schemas

CQL = "create  table shop.orders (id int PRIMARY KEY)"


@pytest.mark.parametrize("name", ["schema.cql", "create_tables.cql", "CREATE.cql"])
def test_a_schema_is_text_or_the_path_of_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(CQL)
    for option in (CQL, str(tmp_path / name)):
        assert [schema.full_name for schema in option_schemas({"schema": option})] == ["shop.orders"]

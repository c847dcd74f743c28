"""The changes of a log, compared with the database's rows of the base table."""

from collections import Counter

from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import CdcDatabase
from tests.scylla_cdc.logs import asked, origins, read_all
from tests.support.merged import assert_answers
from writetime.merge import merge


def test_a_log_gives_the_rows_that_the_database_returns(cdc: CdcDatabase, logged: list[Logged]) -> None:
    kinds: Counter[str] = Counter()
    for table in logged:
        changes = read_all(cdc, table.schema)
        assert Counter(origins(changes)) == Counter(table.origins)
        kinds.update(changes["kind"].to_pylist())
        assert_answers(merge([changes], table.schema), asked(cdc, table.schema, changes))
    assert set(kinds) == {"row", "static", "range_tombstone", "partition_tombstone"}

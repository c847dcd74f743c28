"""The names of a lake's folders: engines read the tables below a folder of any name that is not refused.

Oracle: other engines: delta-rs, DuckDB and Spark read the table below the folder.
"""

from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.support.made import SCHEMA, add, settings_at, write
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.settings import write_settings
from tests.support.view_readers import READERS
from writetime.cli.main import main
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.delta.storage import lake_storage
from writetime.lake import state
from writetime.lake.table import LakeTable, create_table
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.long

ACCEPTED = ["-a!$&'()+,.@", "[b]*^_|~;", "~", "...", "..c", "a" * 200, "-", "$HOME", "AUX", "a.parquet"]
REFUSED = [
    "%",
    "%25",
    "a%2Fb",
    "100%",
    "a=b",
    "=",
    "token_bucket=3",
    "a b",
    " ",
    "é",
    "日本",
    "🙂",
    "a\u200bb",
    "#",
    "?",
]
REFUSED += ['"', "<", ">", "`", "{a}", "\\", "a\\b", "a\nb", "a\tb", "\x01", "a:b", "_delta_log", "b/_delta_log/c"]


def table_in(settings: Settings) -> LakeTable:
    """Create a table of two rows, one of them with a former version, which a deletion vector hides."""
    table = create_table(settings, SCHEMA)
    for number in range(2):
        add(table, [write(i, 1, 1 + number, v="x") for i in range(number, 2)], number)
        state.fold(table)
        refresh(settings, table)
    return table


@pytest.mark.parametrize("name", ACCEPTED)
def test_engines_read_below_a_folder(name: str, tmp_path: Path, spark: SparkSession) -> None:
    view = table_in(settings_at(tmp_path / name)).view.storage.address
    for engine, read in READERS.items():
        assert read(view.replace("'", "''") if engine == "duckdb" else view).num_rows == 2, engine
    assert spark.read.format("delta").load(view).count() == 2


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("place", ["/srv/{name}", "/srv/{name}/lake", "lakes/{name}", "s3a://bucket/{name}/lake"])
def test_other_names_are_refused(name: str, place: str) -> None:
    with pytest.raises(WritetimeError, match=r"lake\.path.*(Name another folder|should match pattern)"):
        lake_storage(config.load(lake={"path": place.format(name=name)}))


@pytest.mark.parametrize("command", ["init", "check"])
def test_commands_refuse_them(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings(settings_at(tmp_path / "%25"), tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    answer = CliRunner().invoke(main, [command])
    assert answer.exit_code == 1
    assert "not all engines can read tables there. Name another folder" in " ".join(answer.output.split())


@pytest.mark.parametrize("path", ["~/lake", "~", f"s3a://{BUCKET}/a/../b", f"s3a://{BUCKET}//b", f"s3a://{BUCKET}/./b"])
def test_paths_that_do_not_lead_where_they_seem_to_are_refused(path: str) -> None:
    with pytest.raises(WritetimeError, match=r"lake\.path is .* Name another folder"):
        lake_storage(config.load(lake={"path": path}))


@given(st.text(st.characters(exclude_characters="/"), min_size=1, max_size=3))
def test_each_character_is_accepted_or_refused_wherever_it_is(name: str) -> None:
    def is_refused(path: str) -> bool:
        try:
            return not lake_storage(config.load(lake={"path": path})).address
        except WritetimeError:
            return True

    assert (
        is_refused(f"/srv/a{name}b/lake")
        == is_refused(f"/srv/lake/a{name}b")
        == any(map(is_refused, [f"/a{c}b" for c in name]))
    )


def test_a_store_reads_below_the_same_prefixes(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "s3")
    store.start()
    try:
        for name in ACCEPTED[:3]:
            lake = {"path": f"s3://{BUCKET}/{name}", "buckets": 2, "storage_options": store.options}
            view = table_in(config.load(lake=lake)).view.storage.address
            assert pl.read_delta(view, storage_options=store.options).height == 2
    finally:
        store.stop()

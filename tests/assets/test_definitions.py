"""The definitions that the web UI shows."""

import errno
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from dagster import (
    AssetKey,
    CodeReferencesMetadataValue,
    DagsterInstance,
    Definitions,
    RepositoryDefinition,
    RunRequest,
    TableSchema,
    UrlCodeReference,
    build_schedule_context,
)
from dagster._cli import cli
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetNode
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType
from dagster._core.definitions.repository_definition import RepositoryLoadData

from demo import definitions as demo
from tests.support.settings import write_settings
from writetime.clients.database import connect
from writetime.core.config import Alerts, Settings, TableEntry, load
from writetime.lake import followed_tables
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import view_schema
from writetime.schema.cql import parse_table
from writetime.servers.process import free_port
from writetime_dagster.assets import tables
from writetime_dagster.assets.automation import with_rounds
from writetime_dagster.assets.definitions import defs
from writetime_dagster.assets.failures import ToCorrect
from writetime_dagster.assets.ingest import DEAD_LETTERS, USER_EVENTS, USER_EVENTS_TOPIC, user_events_topic
from writetime_dagster.assets.naming import PARTS, documented, key_of, view_columns
from writetime_dagster.assets.table_jobs import PROOF
from writetime_dagster.assets.wiring import platform
from writetime_dagster.resources import DatabaseResource, KafkaResource, LakeResource, SparkResource

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RESOURCES = {
    "spark": SparkResource(),
    "database": DatabaseResource(),
    "kafka": KafkaResource(),
    "lake": LakeResource(),
}
GROUPS = {"sources", "ingest", "workqueue", "replay", "capture", "backfill", "changes", "views", "row_events"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file of servers that do not run."""
    path = tmp_path / "writetime.toml"
    path.write_text("")
    monkeypatch.setenv("WRITETIME_CONFIG", str(path))
    monkeypatch.setenv("WRITETIME_CASSANDRA__PORT", str(free_port()))
    return path


def of_tables(**writers: tables.Writer) -> Definitions:
    """The assets, checks and jobs of the tables of the settings file."""
    found = {f"shop.{name}": writer for name, writer in writers.items()}
    return with_rounds(Definitions.merge(tables.definitions(load(), found), Definitions(resources=RESOURCES)))


def edges(definitions: Definitions) -> set[tuple[str, str]]:
    graph = definitions.resolve_asset_graph()
    return {
        (parent.to_user_string(), key.to_user_string())
        for key in graph.get_all_asset_keys()
        for parent in graph.get(key).parent_keys
    }


def test_graph() -> None:
    graph = defs.resolve_asset_graph()
    assert edges(defs) == {
        ("sources/http_events", "sources/user_events_topic"),
        ("sources/user_events_topic", "ingest/user_events"),
        ("ingest/user_events", "ingest/dead_letter_topic"),
        ("ingest/user_events", "ingest/dead_letters"),
        ("ingest/dead_letter_topic", "ingest/dead_letters"),
        ("sources/commit_logs", "capture/agents"),
        ("sources/commit_logs", "capture/published_segments"),
        ("workqueue/event_queue", "workqueue/completed_events"),
    }
    for key in graph.get_all_asset_keys():
        assert graph.get(key).description, key
        assert graph.get(key).kinds, key
        assert graph.get(key).group_name in GROUPS
        assert "dagster/code_references" in graph.get(key).metadata, key
    with_columns = {key.to_user_string() for key in graph.get_all_asset_keys() if columns(graph.get(key))}
    assert with_columns == {
        "ingest/user_events",
        "ingest/dead_letters",
        "workqueue/completed_events",
    }


def test_the_demo_adds_its_flights_to_the_graph() -> None:
    assert edges(demo.defs) - edges(defs) >= {
        ("sources/flights", "sources/http_events"),
        ("sources/flight_items", "workqueue/event_queue"),
        ("workqueue/completed_events", "demo/flight_batches"),
        ("demo/flight_batches", "demo/board"),
    }
    graph = demo.defs.resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        assert graph.get(key).description, key
        assert graph.get(key).kinds, key
        assert "dagster/code_references" in graph.get(key).metadata, key
    assert columns(graph.get(AssetKey(["demo", "board"])))


def columns(node: BaseAssetNode) -> list[str]:
    """The names of the columns that the web UI shows of an asset."""
    found = node.metadata.get("dagster/column_schema")
    return [column.name for column in found.columns] if isinstance(found, TableSchema) else []


def test_assets_of_no_table_have_the_owners_of_the_settings() -> None:
    own = Definitions(assets=[user_events_topic], resources=RESOURCES)
    owned = documented(own, load().model_copy(update={"alerts": Alerts(owners=["team:data"])})).resolve_asset_graph()
    assert owned.get(USER_EVENTS_TOPIC).owners == ["team:data"]


@pytest.fixture
def of_orders(config: Path) -> Definitions:
    """The assets, checks and jobs of one table, which ingest writes."""
    config.write_text('[tables.shop.orders]\nowners = ["team:orders"]\nreplicate_to = "new"\n')
    return of_tables(orders=tables.Writer(USER_EVENTS, "ingest"))


def test_a_table_is_one_entry(of_orders: Definitions) -> None:
    """All stages follow each other: the stages that write the table, the table, and those that read it."""
    assert edges(of_orders) == {
        ("ingest/user_events", "shop/orders/orders"),
        ("shop/orders/orders", "shop/orders/orders_topic"),
        ("capture/agents", "shop/orders/orders_topic"),
        ("shop/orders/orders_topic", "shop/orders/orders_changes"),
        ("shop/orders/orders", "shop/orders/orders_snapshots"),
        ("shop/orders/orders_snapshots", "shop/orders/orders_backfill"),
        ("shop/orders/orders_changes", "shop/orders/orders_state"),
        ("shop/orders/orders_backfill", "shop/orders/orders_state"),
        ("shop/orders/orders_state", "shop/orders/orders_view"),
        ("shop/orders/orders_state", "shop/orders/orders_row_events"),
        ("shop/orders/orders_row_events", "shop/orders/orders_row_topic"),
        ("shop/orders/orders_changes", "shop/orders/orders_replica"),
    }


def test_assets_of_a_table_have_its_owners_groups_and_tags(of_orders: Definitions) -> None:
    graph = of_orders.resolve_asset_graph()
    own = [key for key in graph.get_all_asset_keys() if key.path[0] == "shop"]
    assert all(graph.get(key).owners == ["team:orders"] and graph.get(key).kinds for key in own)
    assert {graph.get(key).tags["writetime/stage"]: key for key in own} == {
        part: key_of("shop.orders", part) for part in PARTS if part != "lag_and_freshness"
    }
    for key in own:
        tags = graph.get(key).tags
        assert (tags["writetime/keyspace"], tags["writetime/table"]) == ("shop", "orders")
    assert {graph.get(key).group_name for key in own} == GROUPS - {"sources", "workqueue", "replay"} | {"replication"}


def test_assets_of_a_table_have_their_addresses(config: Path) -> None:
    config.write_text('[tables.shop.orders]\n[lake]\npath = "/company/lake/"\n')
    graph = of_tables().resolve_asset_graph()
    names = ("dagster/table_name", "dagster/uri")
    found = {key: [graph.get(key).metadata.get(name) for name in names] for key in graph.get_all_asset_keys()}
    assert {key: where for key, where in found.items() if any(where)} == {
        key_of("shop.orders", "table"): ["shop.orders", None],
        **{
            key_of("shop.orders", part): [None, f"/company/lake/shop.orders/{part}"]
            for part in ("changes", "state", "view", "row_events")
        },
    }


def test_jobs_of_a_table(of_orders: Definitions) -> None:
    repository = of_orders.get_repository_def()
    assert set(repository.job_names) >= {
        *("tables_lag", "snapshot", "backfill", "land", "views", "row_events", "catch_up", "verify", "maintain")
    }
    parts = ("changes", "state", "view", "row_events", "row_topic", "replica")
    chain = {key_of("shop.orders", part) for part in parts}
    assert repository.get_job("catch_up").asset_layer.executable_asset_keys == chain
    # A proof reads all of the table, so only these run it.
    with_proof = {
        name
        for name in repository.job_names
        if any(node.name.endswith(PROOF) for node in repository.get_job(name).nodes)
    }
    assert with_proof == {"verify", "audit", "__ASSET_JOB"}


def test_checks_of_a_table(of_orders: Definitions) -> None:
    assert {key.name for key in of_orders.get_repository_def().asset_graph.asset_check_keys} == {
        "changes_are_logged",
        "all_messages_landed",
        "lag_is_bounded",
        "lake_is_fresh",
        "landing_goes_on",
        "lag_is_far_from_retention",
        "changes_are_in_place",
        "levels_are_a_state",
        "write_times_are_past",
        "rows_are_those_of_the_state",
        "rows_are_as_expected",
        "timestamps_fit",
        "rows_are_those_of_the_database",
        "events_are_of_their_kinds",
        "all_events_are_published",
    }


def test_assets_show_the_database_in_use(config: Path) -> None:
    def kinds() -> set[str]:
        platform_of = platform(load()).resolve_asset_graph()
        return {kind for key in platform_of.get_all_asset_keys() for kind in platform_of.get(key).kinds}

    config.write_text("[tables.shop.orders]\n[tables.shop.wrong]\ncolor = 3\n")
    assert kinds() == {"cassandra", "spark", "deltalake", "kafka", "python"}
    config.write_text(
        '[tables.shop.orders]\n[capture]\nsource = "scylla-cdc"\ntables = ["shop.orders"]\nsnapshot = "never"\n'
    )
    assert kinds() == {"scylladb", "spark", "deltalake", "kafka", "python"}


def test_a_table_without_owners_has_those_of_the_settings(config: Path) -> None:
    config.write_text('[tables.shop.orders]\n[tables.shop.wrong]\ncolor = 3\n[alerts]\nowners = ["team:data"]\n')
    graph = of_tables().resolve_asset_graph()
    own = [key for key in graph.get_all_asset_keys() if key.path[0] == "shop"]
    assert key_of("shop.wrong", "table") in own
    assert all(graph.get(key).owners == ["team:data"] for key in own)


def test_a_name_that_is_too_long_for_a_tag_is_cut(config: Path) -> None:
    """ScyllaDB has names of up to 192 characters."""
    name = "n" * 192
    config.write_text(f"[tables.shop.{name}]\n")
    graph = of_tables().resolve_asset_graph()
    assert graph.get(key_of(f"shop.{name}", "view")).tags["writetime/table"] == name[:63]


def test_columns_of_a_view_have_their_cql_types() -> None:
    schema = parse_table(
        "CREATE TABLE shop.orders (day date, id uuid, s text static, n list<int>, PRIMARY KEY (day, id))"
    )
    [found] = view_columns(schema, view_schema(schema)).values()
    assert [(column.name, column.description) for column in found.columns] == [
        ("day", "CQL: date. Partition key."),
        ("id", "CQL: uuid. Clustering key."),
        ("s", "CQL: text. Static: one per partition."),
        ("n", "CQL: list<int>."),
    ]


def test_documents_are_files_of_the_repository(config: Path) -> None:
    config.write_text('[tables.shop.orders]\n[tables.shop.wrong]\ncolor = 3\n[replay]\nqueues = ["mails"]\n')
    graph = platform(load()).resolve_asset_graph()
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    for key in graph.get_all_asset_keys():
        references = graph.get(key).metadata["dagster/code_references"]
        assert isinstance(references, CodeReferencesMetadataValue)
        for reference in references.code_references:
            assert isinstance(reference, UrlCodeReference)
            path = reference.url.removeprefix(f"{urls['Repository']}/blob/main/")
            assert (ROOT / path).exists(), reference.url
            assert reference.label == path


def test_a_table_has_only_the_assets_of_its_entry(config: Path) -> None:
    config.write_text('[tables.shop.orders]\ncapture = false\nrow_events = false\nsnapshots = ["s3://a/b"]\n')
    found = of_tables()
    assert edges(found) == {
        ("shop/orders/orders", "shop/orders/orders_snapshots"),
        ("shop/orders/orders_snapshots", "shop/orders/orders_backfill"),
        ("shop/orders/orders_backfill", "shop/orders/orders_state"),
        ("shop/orders/orders_state", "shop/orders/orders_view"),
    }
    assert not {"land", "row_events", "snapshot"} & set(found.get_repository_def().job_names)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("[tables.shop.wrong]\ncolor = 3", "[tables.shop.wrong] color: there is no such setting"),
        ("[tables.shop.wrong]\nexpects = []", "[tables.shop.wrong] expects: there is no such setting; is it expect?"),
        ('[tables."shop.wrong"]', "a table's entry is written [tables.<keyspace>.<table>]"),
        ('[tables."shop.orders"]', "a table's entry is written [tables.<keyspace>.<table>]"),
        ('[tables.shop."wr ong"]', "a table's entry is written [tables.<keyspace>.<table>]"),
        ('[tables.shop.wrong]\nexpect = [{ type = "expect_nothing" }]', "expect_nothing not found"),
        ('[tables.shop.wrong]\nowners = ["somebody"]', "somebody"),
        ("[tables.shop.b__b]\n[tables.shop__b__b.b]", "Dagster cannot distinguish shop__b__b.b and shop.b__b"),
    ],
)
def test_a_refused_table_reports_why_and_does_not_stop_the_others(
    entry: str, reason: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a command that validates definitions fails."""
    config.write_text(f"[tables.shop.orders]\n{entry}\n")
    graph = of_tables().resolve_asset_graph()
    assert key_of("shop.orders", "view") in graph.get_all_asset_keys()
    [refused] = [k for k in graph.get_all_asset_keys() if "writetime/refused" in graph.get(k).tags]
    description = graph.get(refused).description
    assert description is not None
    assert description.startswith("**Refused:**")
    assert reason in description
    monkeypatch.setenv("DAGSTER_IS_DEFS_VALIDATION_CLI", "1")
    with pytest.raises(ToCorrect) as invalid:
        of_tables()
    [fault] = str(invalid.value).splitlines()
    assert reason in fault


@pytest.mark.parametrize("place", [tables, followed_tables])
def test_a_bug_is_no_refusal(config: Path, monkeypatch: pytest.MonkeyPatch, place: ModuleType) -> None:
    """It fails with its traceback, in the code of the assets as in that of the entries."""

    def bug(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(place, "assets_of" if place is tables else "_schema_of", bug)
    config.write_text("[tables.shop.orders]\n[tables.shop.items]\n")
    with pytest.raises(ZeroDivisionError) as raised:
        of_tables()
    assert raised.traceback[-1].name == "bug"


def test_a_lake_without_an_answer_refuses_no_table(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(followed_tables, "open_table", unavailable)
    config.write_text("[tables.shop.orders]\n")
    graph = of_tables().resolve_asset_graph()
    assert key_of("shop.orders", "view") in graph.get_all_asset_keys()


def test_expectations_of_an_entry_name_columns_of_its_table(settings: Settings, tmp_path: Path) -> None:
    """They are those of the database; if no database answers, the run reports it."""
    keyspace = settings.cassandra.keyspace
    with connect(settings) as session:
        session.execute(f"CREATE TYPE {keyspace}.place (city text)")
        columns = 'id int PRIMARY KEY, total int, "a.b" int, home frozen<place>'
        for name in ("known", "wrong"):
            session.execute(f"CREATE TABLE {keyspace}.{name} ({columns})")
    known = [
        {"type": "expect_column_values_to_not_be_null", "column": "home.city"},
        {"type": "expect_column_values_to_not_be_null", "column": "`a.b`"},
        {"type": "expect_column_pair_values_to_be_equal", "column_A": "id", "column_B": "total"},
        {"type": "expect_compound_columns_to_be_unique", "column_list": ["token_bucket", "id"]},
    ]
    wrong = [*known, {"type": "expect_compound_columns_to_be_unique", "column_list": ["id", "Total"]}]
    entries = {keyspace: {"known": {"expect": known}, "wrong": {"expect": wrong}}}
    write_settings(settings.model_copy(update={"tables": entries}), tmp_path / "writetime.toml")
    graph = of_tables().resolve_asset_graph()
    assert key_of(f"{keyspace}.known", "view") in graph.get_all_asset_keys()
    refused = graph.get(key_of(f"{keyspace}.wrong", "table")).description or ""
    assert refused == (
        f"**Refused:** [tables.{keyspace}.wrong] expect, number 5: {keyspace}.wrong has no column Total; "
        "it has id, `a.b`, home, home.city, total"
    )


def steps(context: DefinitionsLoadContext) -> set[AssetKey]:
    """The assets that a run of `catch_up` has, in a process that loads the definitions."""
    with DefinitionsLoadContext.scoped(context):
        return set(of_tables().get_repository_def().get_job("catch_up").asset_layer.executable_asset_keys)


def reloaded(location: DefinitionsLoadContext) -> DefinitionsLoadContext:
    """As in the process of a run of a code location."""
    told = RepositoryLoadData({}, location.get_pending_reconstruction_metadata())
    return DefinitionsLoadContext(DefinitionsLoadType.RECONSTRUCTION, told)


def test_a_table_that_is_dropped_fails_no_run_of_the_others(settings: Settings, tmp_path: Path) -> None:
    """Until the code location is reloaded a run has the steps of all tables, so its process must, too. The same holds
    for an entry that is edited.
    """
    keyspace, file = settings.cassandra.keyspace, tmp_path / "writetime.toml"
    names = ("one", "dropped", "removed", "misspelt", "renamed", "edited")

    def write(**entries: Any) -> None:
        write_settings(settings.model_copy(update={"tables": {keyspace: entries}}), file)

    write(**{name: {} for name in names})
    with connect(settings) as session:
        for name in names:
            session.execute(f"CREATE TABLE {keyspace}.{name} (id int PRIMARY KEY)")
        location = DefinitionsLoadContext(DefinitionsLoadType.INITIALIZATION)
        before = steps(location)
        parts = ("changes", "state", "view", "row_events", "row_topic")
        assert before == {key_of(f"{keyspace}.{name}", part) for name in names for part in parts}
        session.execute(f"DROP TABLE {keyspace}.dropped", timeout=60)
    write(one={}, dropped={}, misspelt={"row_event": False}, rename={}, edited={"row_events": False, "capture": False})
    assert steps(reloaded(location)) == before
    after = steps(DefinitionsLoadContext(DefinitionsLoadType.INITIALIZATION))
    assert after == {key_of(f"{keyspace}.one", part) for part in parts} | {
        key_of(f"{keyspace}.edited", part) for part in ("state", "view")
    }


def test_a_run_has_the_entries_as_they_were(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the values that only TOML has."""
    config.write_text(
        '[tables.shop.orders]\nsnapshots = ["s3://b/c"]\nmax_lag = 7\n[[tables.shop.orders.expect]]\n'
        'type = "expect_column_values_to_be_in_set"\ncolumn = "day"\n'
        "value_set = [2026-01-02, 2026-01-02T03:04:05.6Z, 03:04:05, inf, 1.5, 3]\n"
    )
    found: list[TableEntry] = []
    assets_of = tables.assets_of

    def seen(table: FollowedTable, writer: tables.Writer | None = None) -> Any:
        found.append(table.entry)
        return assets_of(table, writer)

    monkeypatch.setattr(tables, "assets_of", seen)
    location = DefinitionsLoadContext(DefinitionsLoadType.INITIALIZATION)
    steps(location)
    config.write_text("")
    steps(reloaded(location))
    assert found[0] == found[-1]
    assert found[0].expect[0]["value_set"] == found[-1].expect[0]["value_set"]
    assert type(found[-1].expect[0]["value_set"][1]) is datetime


@pytest.fixture
def repositories(config: Path) -> list[RepositoryDefinition]:
    """The definitions of no table, and those of one."""
    config.write_text("[tables.shop.orders]\n")
    return [defs.get_repository_def(), of_tables().get_repository_def()]


def test_jobs() -> None:
    repository = defs.get_repository_def()
    own = {"ingest", "dead_letters", "agents", "completed_events", "queue_health", "drain_queue", "control_queue"}
    own |= {"publish_segments", "ingest_lag", "queue_audit", "clean_up"}
    assert own <= set(repository.job_names)
    of_demo = demo.defs.get_repository_def()
    assert set(of_demo.job_names) - set(repository.job_names) >= {"replay_flights", "board"}
    assert repository.get_job("ingest").asset_layer.executable_asset_keys == {USER_EVENTS, DEAD_LETTERS}
    assert AssetKey(["sources", "flights"]) in of_demo.get_job("replay_flights").asset_layer.executable_asset_keys
    # A check that reads all items must not run every five minutes.
    nodes = {name: {node.name for node in repository.get_job(name).nodes} for name in ("queue_health", "ingest_lag")}
    assert nodes == {
        "queue_health": {"event_queue", "workqueue__event_queue_no_work_is_stuck"},
        "ingest_lag": {"user_events_topic", "sources__user_events_topic_lag_is_far_from_retention"},
    }


def test_rounds_look_at_all_stages(config: Path) -> None:
    config.write_text('[tables.shop.orders]\n[replay]\nqueues = ["c"]\n')
    repository = platform(load()).get_repository_def()
    nodes = {name: {node.name for node in repository.get_job(name).nodes} for name in ("observe", "audit")}
    assert nodes["observe"] == {
        *("shop__orders__orders", "shop__orders__orders_topic", "event_queue", "user_events_topic"),
        *("observe_agents", "batches_c_lag", "shop__orders__orders_lag_and_freshness"),
        *("shop__orders__orders_changes_are_logged", "shop__orders__orders_topic_lag_is_far_from_retention"),
        "capture__agents_no_agent_is_held_up",
        *("sources__user_events_topic_lag_is_far_from_retention", "workqueue__event_queue_no_work_is_stuck"),
    }
    assert nodes["audit"] == {
        *("shop__orders__orders_view_rows_are_those_of_the_database", "queues__c_batches_are_complete"),
        *("workqueue__event_queue_no_item_is_lost", "workqueue__completed_events_lake_has_what_is_completed"),
    }


def test_one_setting_turns_all_automation_on(config: Path) -> None:
    def on() -> set[str]:
        repository = platform(load()).get_repository_def()
        found = [*repository.schedule_defs, *repository.sensor_defs]
        everything.update(of.name for of in found)
        return {of.name for of in found if of.default_status.value == "RUNNING"}

    everything: set[str] = set()
    config.write_text('[tables.shop.orders]\n[replay]\nqueues = ["c"]\n')
    assert on() == {"failed_runs", "finished_runs", "canceled_runs"}
    config.write_text(config.read_text() + "[dagster]\nautomation = true\n")
    assert on() == everything
    assert len(everything) > 15


def test_every_job_has_a_description(repositories: list[RepositoryDefinition]) -> None:
    jobs = [r.get_job(name) for r in repositories for name in r.job_names if not name.startswith("__")]
    assert all(job.description for job in jobs)


def test_the_document_has_all_checks_and_what_they_stop(config: Path) -> None:
    config.write_text(
        '[tables.shop.orders]\nexpect = [{ type = "expect_column_values_to_not_be_null", column = "id" }]\n'
        '[replay]\nqueues = ["c"]\n'
    )
    graph = platform(load()).get_repository_def().asset_graph
    _, _, section = (ROOT / "docs" / "dagster.md").read_text().partition("\n## Checks\n")
    rows = [line.split(" | ") for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    documented = {row[0].strip("| `"): not row[3].startswith("nothing") for row in rows}
    assert documented == {key.name: graph.get_check_spec(key).blocking for key in graph.asset_check_keys}


def test_every_check_has_a_description(repositories: list[RepositoryDefinition]) -> None:
    for graph in (r.asset_graph for r in repositories):
        assert [key for key in graph.asset_check_keys if not graph.get_check_spec(key).description] == []


def test_sensors(repositories: list[RepositoryDefinition]) -> None:
    assert {s.name for r in repositories for s in r.sensor_defs} == {
        *("captured_changes", "stuck_work", "user_events_lag", "new_snapshots", "schema_changes"),
        *("new_segments", "followed_tables"),
        *("failed_runs", "finished_runs", "canceled_runs"),
    }


def test_schedules(repositories: list[RepositoryDefinition]) -> None:
    assert sorted({(s.name, s.cron_schedule) for r in repositories for s in r.schedule_defs}) == [
        ("audit_schedule", "30 3 * * *"),
        ("catch_up_schedule", "*/15 * * * *"),
        ("clean_up_schedule", "0 3 * * *"),
        ("completed_events_schedule", "25 * * * *"),
        ("dead_letters_schedule", "5-59/15 * * * *"),
        ("maintain_schedule", "30 2 * * *"),
        ("observe_schedule", "*/5 * * * *"),
        ("snapshot_schedule", "0 1 * * 0"),
    ]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def test_a_schedule_starts_no_second_run(
    config: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A schedule first waits for a broker that is not there.
    monkeypatch.setattr("writetime.clients.kafka.TIMEOUT_SECONDS", 1.0)
    config.write_text("[tables.shop.orders]\n[tables.shop.items]\n")
    repository = of_tables().get_repository_def()

    def requests(name: str) -> list[RunRequest]:
        now, resources = datetime.now(UTC), {"kafka": KafkaResource()}
        with build_schedule_context(instance, scheduled_execution_time=now, resources=resources) as context:
            return list(repository.get_schedule_def(name).evaluate_tick(context).run_requests or [])

    for schedule in repository.schedule_defs:
        assert len(requests(schedule.name)) == 1, schedule.name
        instance.create_run_for_job(repository.get_job(schedule.job_name))
        assert requests(schedule.name) == [], schedule.name


def test_workspace_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has loaded Dagster already."""
    monkeypatch.delitem(sys.modules, "writetime_dagster.assets.definitions")
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    # The variables that the command sets for its process.
    monkeypatch.setenv("DAGSTER_IS_DEFS_VALIDATION_CLI", "1")
    monkeypatch.setattr("dagster._cli.definitions.configure_loggers", lambda **_: None)
    monkeypatch.setattr("logging.captureWarnings", lambda _: None)
    answer = CliRunner().invoke(cli, ["definitions", "validate", "-w", "workspace.yaml"])
    assert answer.exit_code == 0, answer.output

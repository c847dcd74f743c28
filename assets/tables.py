"""The assets and checks of an entry `[tables.<keyspace>.<table>]`.

This module lists the assets and checks of a followed table, and defines the asset of the table itself. The assets of
each stage are in the stage's module. `writetime_dagster.assets.table_jobs` starts them.
"""

import json
import logging
import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from typing import Any

import dagster as dg

from writetime.core.config import Settings, TableEntry
from writetime.core.errors import WritetimeError
from writetime.lake.followed_tables import FollowedTable, RefusedEntry, cdc_statement, followed_tables, is_captured
from writetime.schema.describe import to_cql
from writetime.schema.similar_tables import most_similar
from writetime.view.expected_rows import of_entry
from writetime_dagster.assets import backfill, capture, changes, replication, row_events, table_jobs, views
from writetime_dagster.assets.builders import check_of, observed_asset
from writetime_dagster.assets.checks import from_faults
from writetime_dagster.assets.failures import ToCorrect
from writetime_dagster.assets.naming import PARTS, cql_columns, documented, documents, key_of, of_table, pool_of
from writetime_dagster.resources import DatabaseResource
from writetime_dagster.resources.private_dagster import loaded_with, pass_on

log = logging.getLogger(__name__)

# Dagster sets this variable while a command validates definitions (`dagster definitions validate --help`).
_VALIDATION = "DAGSTER_IS_DEFS_VALIDATION_CLI"
# The metadata that the code location passes to the processes of its runs.
_TABLES = "writetime/tables"
_TOML = "writetime/toml"


@dataclass(frozen=True)
class Writer:
    """The asset that writes one of the platform's own tables, and its group. The table is in the same group, so that
    the graph has no cycle when it is collapsed by group.
    """

    key: dg.AssetKey
    group: str


def definitions(
    settings: Settings, writers: Mapping[str, Writer], only: Collection[str] | None = None
) -> dg.Definitions:
    """Return the definitions of the tables that the settings name. An invalid entry is logged, and becomes an asset
    whose description is the reason.

    Args:
        settings: the settings of the installation.
        writers: the assets that write the platform's own tables, by the tables' names.
        only: the tables to return; None for all tables of the settings. A table without an entry is refused.

    Raises:
        ToCorrect: entries are invalid, and Dagster only validates definitions.
    """
    loaded = _loaded()
    found, refused = loaded or followed_tables(settings)
    if only is not None and loaded is None:
        found, refused = _chosen(only, found, refused)
    assets: list[dg.AssetsDefinition | dg.AssetSpec] = []
    checks: list[dg.AssetChecksDefinition] = []
    tables: list[FollowedTable] = []
    identifiers: dict[str, str] = {}
    for table in found:
        try:
            own = {pool_of(table.name, part): table.name for part in PARTS}
            if others := {identifiers[i] for i in own.keys() & identifiers.keys()}:
                raise WritetimeError(
                    f"Dagster cannot distinguish {table.name} and {min(others)}: they have the same identifier"
                )
            if loaded is None:
                # Each run would otherwise import the library for it again.
                of_entry(table)
            its_assets, its_checks = assets_of(table, writers.get(table.name))
            assets += of_table(its_assets, table, settings)
            checks += its_checks
            identifiers |= own
            tables.append(table)
        except WritetimeError as e:
            refused.append(RefusedEntry(table.name, str(e)))
    if refused and os.environ.get(_VALIDATION):
        raise ToCorrect("\n".join(f"the table {entry.name} is refused: {entry.reason}" for entry in refused))
    for entry in refused:
        log.warning("the table %s is refused: %s", entry.name, entry.reason)
    entries = {table.name: table.entry.model_dump(exclude_unset=True) for table in tables}
    pass_on(_TABLES, json.dumps(entries, default=_as_json))
    return dg.Definitions.merge(
        dg.Definitions(assets=assets, asset_checks=checks),
        documented(dg.Definitions(assets=[_refused(entry) for entry in refused]), settings),
        table_jobs.definitions(tables),
    )


def assets_of(
    table: FollowedTable, writer: Writer | None = None
) -> tuple[list[dg.AssetsDefinition | dg.AssetSpec], list[dg.AssetChecksDefinition]]:
    """Return the assets of one table, and the checks that are not part of them.

    Raises:
        WritetimeError: its entry cannot be followed.
    """
    assets: list[dg.AssetsDefinition | dg.AssetSpec] = [source(table, writer), backfill.snapshots(table)]
    assets += [backfill.build_backfill_asset(table), changes.build_state_asset(table), views.build_view_asset(table)]
    checks = [views.build_verify_check(table), *([views.build_expectations_check(table)] if table.entry.expect else [])]
    if table.entry.capture:
        assets += [capture.build_changes_topic_asset(table), changes.build_changes_asset(table)]
        checks += [
            is_captured_by_the_database(table),
            capture.build_retention_check(table),
            changes.build_lag_checks(table),
        ]
    if table.entry.row_events:
        assets += [row_events.build_row_events_asset(table), row_events.build_row_events_topic_asset(table)]
    if table.entry.replicate_to:
        assets.append(replication.build_replica_asset(table, table.entry.replicate_to))
    return assets, checks


def source(table: FollowedTable, writer: Writer | None) -> dg.AssetsDefinition:
    """Return the asset that observes the table in the database."""
    text = {} if table.schema is None else {"cql": dg.MetadataValue.md(f"```sql\n{_cql(table)}```")}

    @observed_asset(
        dg.AssetSpec(
            key_of(table.name, "table"),
            deps=[writer.key] if writer else [],
            group_name=writer.group if writer else PARTS["table"],
            kinds={"cassandra"},
            description=table.entry.description or f"The table {table.name} of the database.",
            metadata={**cql_columns(table.schema), **text, **documents("docs/data-types.md", "cql")},
        ),
        name=pool_of(table.name, "table"),
    )
    def observe(database: DatabaseResource) -> dg.ObserveResult:
        with database.connect() as session:
            captured = is_captured(session, database.settings, table.name)
        return dg.ObserveResult(metadata={"captured": captured})

    return observe


def is_captured_by_the_database(table: FollowedTable) -> dg.AssetChecksDefinition:
    """Return the check that the database logs a table's changes."""

    @check_of(
        key_of(table.name, "table"), "The database logs changes of this table for capture.", name=table_jobs.LOGGED
    )
    def changes_are_logged(database: DatabaseResource) -> dg.AssetCheckResult:
        with database.connect() as session:
            captured = is_captured(session, database.settings, table.name)
        if captured:
            return from_faults([], {})
        fix = cdc_statement(database.settings, table.name)
        return from_faults([f"the database does not log changes of this table: {fix}"], {"fix": fix})

    return changes_are_logged


def _loaded() -> tuple[list[FollowedTable], list[RefusedEntry]] | None:
    """Return the tables that the code location follows, if this is a process of one of its runs. Else return None.

    A run does not read the database and the settings file again. Its steps cover all tables that the code location had
    when it loaded. If a table was dropped or an entry was edited since then, a second reading would fail all steps.
    """
    if (text := loaded_with(_TABLES)) is None:
        return None
    entries = json.loads(text, object_hook=_from_json)
    return [FollowedTable(name, TableEntry.model_validate(entry)) for name, entry in entries.items()], []


def _as_json(value: date | time) -> dict[str, str]:
    """Return as JSON a value that JSON has no type for and TOML has, such as a date in a bound of `expect`."""
    return {_TOML: value.isoformat()}


def _from_json(found: dict[str, Any]) -> Any:
    return tomllib.loads(f"value = {found[_TOML]}")["value"] if found.keys() == {_TOML} else found


def _chosen(
    only: Collection[str], found: Sequence[FollowedTable], refused: Sequence[RefusedEntry]
) -> tuple[list[FollowedTable], list[RefusedEntry]]:
    """Return the chosen tables: those that are followed, and those that are refused, such as one without an entry."""
    known = {entry.name for entry in (*found, *refused)}
    unknown: list[RefusedEntry] = []
    for name in sorted(set(only) - known):
        similar = most_similar(name, known)
        hint = f"; is it {similar}?" if similar else ""
        unknown.append(RefusedEntry(name, f"the settings have no entry [tables.{name}]{hint}"))
    return (
        [table for table in found if table.name in only],
        [*(entry for entry in refused if entry.name in only), *unknown],
    )


def _cql(table: FollowedTable) -> str:
    assert table.schema is not None
    return to_cql(replace(table.schema, id=None, dropped=()))


def _refused(entry: RefusedEntry) -> dg.AssetSpec:
    return dg.AssetSpec(
        key_of(entry.name, "table"),
        group_name=PARTS["table"],
        tags={"writetime/refused": "true"},
        kinds={"cassandra"},
        description=f"**Refused:** {entry.reason}",
        metadata={"refused": entry.reason, **documents("docs/dagster.md")},
    )

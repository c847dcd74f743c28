"""What the table in another cluster lacks besides rows, before clients move there."""

from collections.abc import Iterator

from cassandra.cluster import Session

from writetime.clients.database import DRIVER_FAULTS, connect, driver_reason
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.replication.target_table import follow_key_names
from writetime.schema.system import read_schema
from writetime.schema.table_options import read_lookups, read_options, set_options


def prepare(settings: Settings, cluster: str, table: str) -> tuple[list[str], list[str]]:
    """Rename the key columns of `keyspace.table` in a cluster as in the database. Return the statements that did it,
    and what differs besides columns and rows, as sentences: options, indexes and materialized views.

    Raises:
        Transient: one of the two does not answer.
        WritetimeError: a key column cannot be renamed, or one of the two has no such table.
    """
    with connect(settings) as source, connect(settings.of_cluster(cluster)) as target:
        renamed = follow_key_names(target, read_schema(source, table), cluster)
        try:
            return renamed, list(_missing(source, target, cluster, table))
        except DRIVER_FAULTS as e:
            raise WritetimeError(
                f"the options of {table} cannot be read here and in {cluster} ({driver_reason(e)}): run this again"
            ) from None


def _missing(source: Session, target: Session, cluster: str, table: str) -> Iterator[str]:
    wanted, found = (read_options(session, table) for session in (source, target))
    for name, text in wanted.other_than(found).items():
        yield f"{name} is {found.texts[name]} in {cluster}, and was {text}: {set_options(table, {name: text})}"
    wanted, found = (read_lookups(session, table) for session in (source, target))
    names, indexed = {each.name for each in found}, {each.of for each in found if each.kind == "index"}
    for each in wanted:
        if each.name not in names and not (each.kind == "index" and each.of in indexed):
            yield f"{cluster} lacks the {each.kind} {each.name} ({each.of})"

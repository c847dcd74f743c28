"""The options that a new table in the target gets from the source, if the source answers."""

import logging

from writetime.clients.database import DRIVER_FAULTS, answers, connect, driver_reason
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError, reason_of
from writetime.schema.table import TableSchema
from writetime.schema.table_options import read_options

log = logging.getLogger(__name__)


def source_options(settings: Settings, schema: TableSchema) -> dict[str, str]:
    """Return the CQL texts of the options of the table in the source by their names. A replication needs the lake only,
    so without an answer there are none, and `writetime cutover` reports those that differ.
    """
    try:
        if not answers(settings):
            raise WritetimeError("no contact point answers")
        with connect(settings) as session:
            found = read_options(session, schema.full_name)
        if schema.id not in (None, found.id):
            raise WritetimeError("the database has another table of this name")
    except (WritetimeError, *DRIVER_FAULTS) as e:
        reason = driver_reason(e) if isinstance(e, DRIVER_FAULTS) else reason_of(e)
        log.warning(
            "%s gets no default_time_to_live and comment of the source, which cannot be read (%s): `writetime cutover` "
            "lists what to set",
            schema.full_name,
            reason,
        )
        return {}
    return dict(found.texts)

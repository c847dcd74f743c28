"""One pass over the landed tables, like that of `writetime follow`."""

import logging

from writetime.landing.following import LandedTables, ends_of

log = logging.getLogger(__name__)


def look(tables: LandedTables) -> None:
    """Land each table that is due, once. A fault that concerns all tables is logged, and stops this round."""
    try:
        sources, ends = tables.ask()
    except Exception:
        log.exception("no table can be followed")
        return
    for table in tables.wanted(ends):
        reached = ends_of(ends, table.name)
        if table.is_due(reached) and not table.is_current(reached, sources):
            table.land(reached, sources)
    tables.reporter.flush()

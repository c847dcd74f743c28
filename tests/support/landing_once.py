"""One look at the tables that are landed, as `writetime follow` takes it."""

from writetime.landing.following import Tables, ends_of


def look(tables: Tables) -> None:
    """Land each table that is due, once."""
    sources, ends = tables.ask()
    for table in tables.wanted(ends):
        reached = ends_of(ends, table.name)
        if table.is_due and not table.is_current(reached, sources):
            table.land(reached, sources)
    tables.reporter.flush()

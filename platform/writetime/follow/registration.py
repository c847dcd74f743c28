"""The registration of one table's Iceberg tables in their catalog, as a step of `follow` with turns of its own.

So a catalog that is slow, or does not answer, does not delay the view and the row events of the table.
"""

from collections.abc import Collection

from writetime.core.config import Settings
from writetime.follow.steps import Step
from writetime.iceberg.publication import IcebergTable

# The pause after a fault. A request to a catalog that does not answer takes half of it.
_REST_SECONDS = 60.0


class TableRegistration:
    """Registers Iceberg tables. One thread at a time may run it, and another one may announce new versions of them."""

    def __init__(self, settings: Settings, table: str) -> None:
        self.name = table
        self.step = Step(settings, "catalog", table, settings.follow.view_seconds)
        self._tables: Collection[IcebergTable] = ()

    def begin(self, tables: Collection[IcebergTable]) -> None:
        """Record the Iceberg tables, of which some may have new versions."""
        self._tables = tables
        if self._is_behind:
            self.step.begin()

    def run(self) -> None:
        """Let the catalog have the newest versions."""
        if not self.step.attempt(self._register):
            self.step.rest(_REST_SECONDS)
        elif self._is_behind:
            # They came while it waited for the catalog.
            self.step.begin()

    @property
    def _is_behind(self) -> bool:
        return not all(each.is_registered for each in self._tables)

    def _register(self) -> int:
        tables, fault = self._tables, None
        for each in tables:
            try:
                each.register()
            except Exception as e:
                # The catalog may refuse one of them only.
                fault = fault or e
        if fault:
            raise fault
        return len(tables)

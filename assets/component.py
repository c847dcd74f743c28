"""The followed tables as a component of another Dagster project: `type: writetime_dagster.WritetimeComponent`.

This module has the component's attributes. `writetime_dagster.assets.wiring` has the definitions that it adds.
"""

from pathlib import Path
from typing import Annotated

import dagster as dg

from writetime.core import config
from writetime_dagster.assets.wiring import of_tables


def _file(context: dg.ResolutionContext, value: str | None) -> Path | None:
    """Return the path of the settings file. A relative path is relative to the file with the attributes."""
    return None if value is None else context.resolve_source_relative_path(value)


class WritetimeComponent(dg.Component, dg.Resolvable, dg.Model):
    """The tables of ScyllaDB or Apache Cassandra that Writetime follows: their assets, checks, jobs, schedules and
    sensors, and those of their capture.

    A project has at most one such component, because the assets are named after the tables.
    """

    settings: Annotated[
        Path | None,
        dg.Resolver(
            _file,
            model_field_type=str | None,
            description="The settings file, relative to this file. Default: the file that WRITETIME_CONFIG names, or "
            "else writetime.toml in the working folder.",
            examples=["writetime.toml"],
        ),
    ] = None
    tables: Annotated[
        list[str] | None,
        dg.Resolver.default(
            description="The tables to include, as keyspace.table. Default: all tables in the settings.",
            examples=[["shop.orders"]],
        ),
    ] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the tables.

        Raises:
            WritetimeError: the settings are missing or invalid.
        """
        del context
        return of_tables(config.load(self.settings, "settings"), self.tables, self.settings)

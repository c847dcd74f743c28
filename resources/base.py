"""The common base of all resources: the settings, and the report of the run that uses them."""

from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
from pydantic import Field

from writetime.core import config
from writetime.core.config import Settings
from writetime_dagster.resources import dead_runs, run_reports

# The description of a field whose name is that of a setting.
SAME = "Default: the setting of this name."
SAME_SECRET = f"{SAME} Name a variable: `EnvVar`."


class WritetimeResource(dg.ConfigurableResource):
    """A resource whose addresses and secrets are those of the settings, unless its fields name others.

    Each step of the platform uses such a resource. So each run is reported, regardless of how it was started.
    """

    section: ClassVar[str]
    """The section of the settings whose values the other fields override."""

    settings_file: str | None = Field(
        default=None,
        description="The settings file. Default: the file that WRITETIME_CONFIG names, or else writetime.toml in the "
        "working folder.",
    )

    def overrides(self) -> dict[str, Any]:
        """Return the values of the section that the fields name; None: that of the settings."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "settings_file"}

    @property
    def settings(self) -> Settings:
        """The current settings, with the values of the fields.

        Raises:
            InvalidSettings: a field or a setting is invalid.
        """
        return self.settings_with()

    def settings_with(self, *others: "WritetimeResource") -> Settings:
        """Return the current settings of this resource's file, with the values of the other fields of this resource and
        of others.

        Raises:
            InvalidSettings: a field or a setting is invalid.
        """
        found: dict[str, dict[str, Any]] = {}
        for resource in (self, *others):
            if named := {name: value for name, value in resource.overrides().items() if value is not None}:
                found[resource.section] = named
        return config.load(self.file, "settings_file", **found)

    @property
    def file(self) -> Path | None:
        """The settings file, if a field names one."""
        return None if self.settings_file is None else Path(self.settings_file)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Let the run be recognised as dead once its process is gone."""
        dead_runs.begin(context)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Report the run, unless another resource has."""
        run_reports.ending(context, self.file)

"""The common base of all resources: the settings, and the report of the run that uses them."""

from typing import Any

from dagster import ConfigurableResource, InitResourceContext

from writetime.core import config
from writetime.core.config import Settings
from writetime_dagster.resources import dead_runs, run_reports


class WritetimeResource(ConfigurableResource):
    """A resource whose addresses and secrets are those of the settings, unless its fields name others.

    Each step of the platform uses such a resource. So each run is reported, regardless of how it was started.
    """

    def overrides(self) -> dict[str, dict[str, Any]]:
        """Return the values that the fields name, by section and name of the settings; None: that of the settings."""
        return {}

    @property
    def settings(self) -> Settings:
        """The current settings, with the values of the fields.

        Raises:
            InvalidSettings: a field or a setting is invalid.
        """
        return self.settings_with()

    def settings_with(self, *others: "WritetimeResource") -> Settings:
        """Return the current settings, with the values of the fields of this resource and of others.

        Raises:
            InvalidSettings: a field or a setting is invalid.
        """
        sections = [section for resource in (self, *others) for section in resource.overrides().items()]
        named = {name: {field: v for field, v in values.items() if v is not None} for name, values in sections}
        return config.load(**{name: values for name, values in named.items() if values})

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Let the run be recognised as dead once its process is gone."""
        dead_runs.begin(context)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Report the run, unless another resource has."""
        run_reports.ending(context)

"""The common base of all resources: the settings, and the report of the run that uses them."""

from dagster import ConfigurableResource, InitResourceContext

from writetime.core import config
from writetime.core.config import Settings
from writetime_dagster.resources import dead_runs, run_reports


class WritetimeResource(ConfigurableResource):
    """A resource that takes its addresses and secrets from the settings, so that Dagster never stores them.

    Each step of the platform uses such a resource. So each run is reported, regardless of how it was started.
    """

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return config.load()

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Let the run be recognised as dead once its process is gone."""
        dead_runs.begin(context)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Report the run, unless another resource has."""
        run_reports.ending(context)

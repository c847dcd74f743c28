"""What all resources share: the settings."""

from dagster import ConfigurableResource

from writetime.core import config
from writetime.core.config import Settings


class WritetimeResource(ConfigurableResource):
    """A resource that takes its addresses and secrets from the settings, so that Dagster never stores them."""

    @property
    def settings(self) -> Settings:
        """The settings in force now."""
        return config.load()

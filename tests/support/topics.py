"""Options of topics."""

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from writetime.clients.kafka import client_config
from writetime.core.config import Settings


def alter_topic(settings: Settings, topic: str, options: dict[str, str]) -> None:
    """Change the configuration of a topic."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in options.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient(client_config(settings))
    admin.incremental_alter_configs([resource])[resource].result(15)

"""The Dagster resources. Each reads `writetime.toml` when a run starts, so a change needs no restart of the web UI."""

from resources.database import DatabaseResource
from resources.kafka import KafkaResource
from resources.lake import LakeResource
from resources.spark import SparkResource
from resources.zookeeper import ZooKeeperResource

__all__ = ["DatabaseResource", "KafkaResource", "LakeResource", "SparkResource", "ZooKeeperResource"]

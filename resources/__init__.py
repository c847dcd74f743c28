"""The Dagster resources. Each reads `writetime.toml` when a run starts, so a change needs no restart of the web UI."""

from writetime_dagster.resources.database import DatabaseResource
from writetime_dagster.resources.kafka import KafkaResource
from writetime_dagster.resources.lake import LakeResource
from writetime_dagster.resources.spark import SparkResource
from writetime_dagster.resources.zookeeper import ZooKeeperResource

__all__ = ["DatabaseResource", "KafkaResource", "LakeResource", "SparkResource", "ZooKeeperResource"]

"""Clients of other systems: the database, Kafka, a schema registry, ZooKeeper, Spark."""

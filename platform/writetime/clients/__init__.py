"""The ways to other systems: the database, Kafka, a schema registry, ZooKeeper, Spark."""

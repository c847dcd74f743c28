"""Capture: live changes of a Cassandra node, from its commit log to Kafka."""

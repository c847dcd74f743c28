"""Kafka's messages: changes, watermarks, the topic of schemas, and how they are published."""

"""What goes over Kafka: messages of changes, watermarks, the topic of schemas, and how they are published."""

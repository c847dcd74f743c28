"""From Kafka to the lake: messages of changes become files of the lake, each once."""

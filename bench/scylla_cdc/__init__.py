"""A ScyllaDB CDC log to Kafka, by Writetime's agent and by ScyllaDB's library scylla-cdc-java, in one run."""

"""Converts bytes on disk to changes: SSTables and commit logs of Cassandra and ScyllaDB, without the database."""

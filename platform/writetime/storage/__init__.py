"""Bytes on disk become changes: SSTables and commit logs of Cassandra and ScyllaDB, without the database."""

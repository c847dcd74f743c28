"""Reads SSTables and commit logs of Cassandra and ScyllaDB as changes, without the database."""

"""Finds snapshots and backups of SSTables, as the databases, Cassandra Medusa and Scylla Manager leave them."""

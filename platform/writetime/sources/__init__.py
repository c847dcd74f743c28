"""PySpark Data Sources: `sstable`, `commitlog` and `scylla_cdc`."""

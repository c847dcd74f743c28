"""PySpark Data Sources: `spark.read.format("sstable")`, `spark.readStream.format("commitlog")`."""

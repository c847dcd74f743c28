"""ScyllaDB's change data capture: the rows of a table's log, stream by stream, as changes.

A base table `ks.t` with CDC has a log `ks.t_scylla_cdc_log`, an ordinary table whose partitions are *streams*. Which
streams there are is told by *sets* (ScyllaDB's documentation calls those of vnodes generations), each from an instant
on. A write is logged in the stream that the set of its write time has for its partition, so of an interval of write
times one knows which streams to read.
"""

"""ScyllaDB's change data capture: the rows of a table's log, stream by stream, as changes.

A base table `ks.t` with CDC has a log `ks.t_scylla_cdc_log`, an ordinary table whose partitions are *streams*. *Sets*
list the streams, and each set is valid from a time on. (ScyllaDB's documentation calls the sets of vnodes generations.)
A write is logged in the stream that the set of its write time has for its partition. So the streams of an interval of
write times are known.
"""

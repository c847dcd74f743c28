"""Differential histories: generated tables and writes, in a real database and in the lake, compared after every round.

A *plan* is one table of a seed: its schema, some *histories*, and rounds. A history is a list of generated statements
on four partition keys of its own with six clustering keys each, so that many writes concern the same rows. Write times,
and the seconds in which the database executes the statements, are chosen (ties, negatives, late writes), and so are
TTLs and all kinds of deletions.

In each round, a part of each history is written. Columns may be dropped and added again, and SSTables flushed,
compacted and snapshotted. Then steps in random order bring commit logs and snapshots to the lake, completely or in
part, late, and repeatedly, as with replicas. Other steps fold, compact, trim, drop tombstones and pack row events.
After the round, at a chosen second, which is often after the expiry of some cells:

- the virtual view equals the database's rows at that instant (unless the round left something out)
- the compacted view equals the virtual view
- the row events, replayed from the start, equal the virtual view

    python -m tests.lake.histories --seeds 100 --first 1

A flag of the native protocol (`now_in_seconds`) sets the second for reads and writes. So results do not depend on the
time of the run, except for the elements of lists, whose paths the database creates itself.
"""

"""Differential histories: generated tables and writes, in a real database and in the lake, compared after every round.

A *plan* is one table of a seed: its schema, some *histories*, and rounds. A history is a list of generated statements
on four partition keys of its own, six clusterings each, so that its writes meet; write times, and the seconds in which
the database executes them, are chosen (ties, negatives, late writes), as are TTLs and all kinds of deletes. In each
round a part of every history is written; columns may be dropped and come back; SSTables may be flushed, compacted and
snapshotted. Then steps in random order bring commit log and snapshots to the lake, whole or in part, late, and again as
replicas would, and fold, compact, trim, drop tombstones and pack row events there. After the round, at a chosen
second, often beyond the expiry of some cells:

- the virtual view is what the database answers for that instant (unless the round left something out)
- the compacted view is the virtual view
- the row events, replayed from the start, are the virtual view

    python -m tests.lake.histories --seeds 100 --first 1

The database is asked, and written to, as of chosen seconds by a flag of the native protocol (`now_in_seconds`), so
nothing depends on when a test runs but the elements of lists, whose paths the database makes itself.
"""

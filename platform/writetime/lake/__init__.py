"""The lake: the state of a captured table and its views, with horizon, history, backfill and retention.

`writetime.delta` has the table format, and `writetime.files` reads the files of rows. `writetime.changes.model` defines
a change, and `writetime.merge` merges changes.
"""

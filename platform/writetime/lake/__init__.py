"""The lake: captured changes, their merged state and its views, as Delta tables that any engine reads.

The package handles files, commits, levels and retention. `writetime.changes.model` defines a change, and
`writetime.merge` merges changes.
"""

"""The lake: captured changes, their merged state and its views, as Delta tables that any engine reads.

What belongs here: files, commits, levels, retention. Not here: the meaning of a change (`writetime.changes.model`) and
how changes are merged (`writetime.merge`).
"""

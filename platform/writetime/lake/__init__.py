"""The lake: what was captured, its merged state and its views, as Delta tables that any engine reads.

What belongs here: files, commits, levels, retention. Not here: what a change means (`writetime.changes.model`) and how
changes are merged (`writetime.merge`).
"""

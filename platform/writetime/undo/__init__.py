"""Undo: the cells that were last written within an interval get back what they had before it."""

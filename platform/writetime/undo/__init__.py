"""Undo: cells that were last written within an interval get their earlier values back."""

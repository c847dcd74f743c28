"""Proof on demand: whether the lake and the database return the same rows of a table."""

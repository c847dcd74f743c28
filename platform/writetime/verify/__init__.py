"""Proof on demand: whether the lake says of a table what the database answers."""

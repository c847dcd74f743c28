"""Writetime: what the lake says is what the database would answer."""

"""Reads the lake's files of changes and rows: whole, merged, or by key through a cache of decoded files."""

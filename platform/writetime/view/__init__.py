"""The compacted view, kept up to date row by row."""

"""The way back: a table of the lake as SSTables, their import into the nodes of a database, and the proof of it."""

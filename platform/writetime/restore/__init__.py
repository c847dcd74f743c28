"""The way back: a table of the lake as SSTables, or imported into a table and compared with it."""

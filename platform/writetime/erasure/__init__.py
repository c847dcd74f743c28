"""Erases partitions of a table from all that Writetime keeps of them (`erasing`), and certifies it."""

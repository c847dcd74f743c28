"""Erases partitions and rows of a table from all that Writetime keeps of them (`erasing`), and certifies it."""

"""The copy of a table in another cluster: each cell and deletion is written there with its own write time."""

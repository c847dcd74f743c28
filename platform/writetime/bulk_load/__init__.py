"""SSTables for the nodes of a database, by token range, and their import."""

"""Rows of a captured table by their key: at the cost of the rows, whatever the size of the table."""

"""Rows of a captured table by their key: at the cost of the rows, regardless of the size of the table."""

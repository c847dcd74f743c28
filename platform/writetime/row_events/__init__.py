"""Row events: what a table's rows became, batch by batch, as CREATE, UPDATE and DELETE with the row before and after.

They come from comparing the rows that live before and after a batch of changes, so they say what a reader of the table
would have seen, and nothing when nothing visible changed. See `docs/rows.md`.
"""

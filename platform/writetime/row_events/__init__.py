"""Row events: the changes of a table's rows, batch by batch, as CREATE, UPDATE and DELETE with the row before and
after.

They come from comparing the rows that live before and after a batch of changes. So they show the rows that a reader of
the table would have got, and nothing if no visible value changed. See `docs/row-events.md`.
"""

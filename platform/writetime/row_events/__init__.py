"""Row events: the changes of a table's rows, batch by batch, as CREATE, UPDATE and DELETE with the row before and
after.

They result from comparing the live rows before and after a batch of changes. So they have the rows that a reader of the
table would have read. If no visible value changed, there is no event. See `docs/row-events.md`.
"""

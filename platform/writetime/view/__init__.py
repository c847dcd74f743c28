"""The compacted view, kept up to date row by row.

`lake.projection` commits its versions, and `lake.view_retention` deletes the files that no version needs. They are in
`lake`, because `lake.retention` uses them.
"""

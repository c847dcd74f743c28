"""The compacted view, kept up to date row by row.

`lake.view_commits` commits its versions, and `lake.view_retention` deletes the files that no version needs. They are in
`lake`, because `lake.views` and `lake.retention` use them.
"""

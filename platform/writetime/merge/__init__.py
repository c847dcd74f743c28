"""Last-write-wins: it folds changes into a state, and returns the live rows of a state at a time.

    state = merge([sstable_changes, log_changes, older_state], schema)
    rows = live_rows(state, schema, as_of=1_767_225_600)

Merging is a join in a lattice: any split, order and duplication of the same changes gives the same state.
"""

from writetime.merge.folding import merge
from writetime.merge.live import live_rows

__all__ = ["live_rows", "merge"]

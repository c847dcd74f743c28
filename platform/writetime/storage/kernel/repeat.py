"""Repeats the values of partitions for their rows."""

# ruff: noqa: PLR0917 (numba has no keyword-only arguments)

from writetime.storage.kernel.memory import compiled, copy, load_native32, store32


@compiled
def repeat_values(counts: int, offsets: int, values: int, partitions: int, out_offsets: int, out: int) -> None:
    """Write each value once per row of its partition to `out`, and its ends to `out_offsets`.

    Args:
        counts: address of the number of rows of each partition (int32).
        offsets: address of the int32 offsets of the partitions' values.
        values: address of their bytes.
        partitions: the number of partitions.
        out_offsets: address for an int32 per row.
        out: address for the bytes.
    """
    end = 0
    for partition in range(partitions):
        count = load_native32(counts + 4 * partition)
        start = load_native32(offsets + 4 * partition)
        length = load_native32(offsets + 4 * partition + 4) - start
        for row in range(count):
            store32(out_offsets + 4 * row, end + length * (row + 1))
        out_offsets += 4 * count
        size = length * count
        done = min(length, size)
        copy(out + end, values + start, done)
        while done < size:
            step = min(done, size - done)
            copy(out + end + done, out + end, step)
            done += step
        end += size

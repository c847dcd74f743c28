"""Repeats the values of partitions for their rows."""

# ruff: noqa: PLR0917 (numba has no keyword-only arguments)

from writetime.storage.kernel.memory import compiled, copy, load_native32, store32


@compiled
def repeat_values(counts: int, offsets: int, values: int, partitions: int, out_offsets: int, out: int) -> None:
    """Write each value once per row of its partition to `out`, and its ends (int32) to `out_offsets`. The addresses are
    those of the numbers of rows (int32), of the offsets of the partitions' values (int32), and of their bytes.
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

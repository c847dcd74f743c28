"""Arrow arrays that repeat one value."""

from typing import Any

import pyarrow as pa


class Constant:
    """A value to repeat. One array of it, with a power of two as its length, is built. All results are its slices."""

    def __init__(self, value: Any, arrow: pa.DataType) -> None:
        self.type = arrow
        self._value = value
        self._array = pa.nulls(0, arrow)

    def times(self, count: int) -> pa.Array:
        """Return the value `count` times."""
        if count > len(self._array):
            length = 1 << max(10, (count - 1).bit_length())
            self._array = pa.repeat(pa.scalar(self._value, self.type), length)
        return self._array.slice(0, count)

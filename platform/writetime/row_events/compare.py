"""Compares rows, column by column, of any Arrow type. Two values differ if a reader can distinguish them.

Numbers are compared by their bits, so a not-a-number equals itself and -0.0 differs from 0.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from writetime.core.arrow import mask_of, numbers, one_chunk, pc, take
from writetime.merge.order import group_by


@dataclass(frozen=True)
class OrderedRows:
    """Rows in the order of the database, each at most once, with the place of each: token, partition key, position.

    `lost_bytes` are, by column, the serialised values where decoding lost some of their bytes; only of both sides of a
    comparison. `within` are, by column of whole numbers, how inexact these are.
    """

    values: pa.Table
    tokens: pa.Array
    keys: pa.Array
    positions: pa.Array
    lost_bytes: Mapping[str, pa.Array] = field(default_factory=dict)
    within: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Matched:
    """The rows of two tables by their places, in order: the index in each table, -1 if it has no such row."""

    before: np.ndarray
    after: np.ndarray


def match(before: OrderedRows, after: OrderedRows) -> Matched:
    """Find the rows of two tables that have the same place. If rows of one table share a place, a fault, one of them is
    matched. The others come last, alone.
    """
    tokens = np.concatenate([numbers(before.tokens), numbers(after.tokens)])
    keys = pa.concat_arrays([before.keys, after.keys])
    positions = pa.concat_arrays([before.positions, after.positions])
    group, head, _ = group_by(tokens, keys, positions)
    count = len(before.tokens)
    found = Matched(_places(group[:count], len(head)), _places(group[count:], len(head)))
    more, others = _unmatched(found.before, count), _unmatched(found.after, len(after.tokens))
    if not len(more) + len(others):
        return found
    none = np.full(len(more), -1), np.full(len(others), -1)
    return Matched(np.concatenate([found.before, more, none[1]]), np.concatenate([found.after, none[0], others]))


def changed(before: OrderedRows, after: OrderedRows) -> Matched:
    """Return the places where the two tables differ: a row in only one of them, or two rows that differ."""
    found = match(before, after)
    differs = (found.before < 0) | (found.after < 0)
    both = np.flatnonzero(~differs)
    i, j = found.before[both], found.after[both]
    for name in after.values.column_names:
        differs[both] |= different_values(before, i, after, j, name)
    return Matched(found.before[differs], found.after[differs])


def different_values(one: OrderedRows, i: np.ndarray, other: OrderedRows, j: np.ndarray, name: str) -> np.ndarray:
    """Return where the values of a column differ between the rows `i` of one table and the rows `j` of the other."""
    within = one.within.get(name, 0) + other.within.get(name, 0)
    values = different(take(one_chunk(one.values[name]), i), take(one_chunk(other.values[name]), j), within)
    if name not in one.lost_bytes:
        return values
    return values | different(take(one.lost_bytes[name], i), take(other.lost_bytes[name], j))


def different(one: pa.Array, other: pa.Array, within: int = 0) -> np.ndarray:
    """Return where two arrays of the same type and length differ; if they have whole numbers, by more than `within`."""
    arrow = one.type
    one_valid, other_valid = mask_of(one.is_valid()), mask_of(other.is_valid())
    if pa.types.is_struct(arrow):
        found = np.zeros(len(one), bool)
        for a, b in zip(one.flatten(), other.flatten(), strict=True):
            found |= different(a, b)
    elif pa.types.is_map(arrow):
        entries = pa.list_(pa.struct([("key", arrow.key_type), ("value", arrow.item_type)]))
        return different(one.cast(entries), other.cast(entries))
    elif pa.types.is_list(arrow):
        found = _lists_different(one, other, within)
    elif pa.types.is_null(arrow):
        found = np.zeros(len(one), bool)
    elif within:
        found = mask_of(pc.greater(pc.abs(pc.subtract(one, other)), within).fill_null(False))
    else:
        found = mask_of(pc.not_equal(_bits(one), _bits(other)).fill_null(False))
    return np.where(one_valid & other_valid, found, one_valid != other_valid)


def _lists_different(one: pa.ListArray, other: pa.ListArray, within: int) -> np.ndarray:
    lengths, other_lengths = (pc.list_value_length(a).fill_null(0).to_numpy() for a in (one, other))
    found = lengths != other_lengths
    same = pa.array(~found)
    elements = different(one.filter(same).flatten(), other.filter(same).flatten(), within)
    row = np.repeat(np.flatnonzero(~found), lengths[~found])
    found[row[elements]] = True
    return found


def _bits(array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array


def _unmatched(index: np.ndarray, count: int) -> np.ndarray:
    """Return which of `count` rows an index lacks."""
    matched = np.zeros(count + 1, bool)
    matched[index] = True
    return np.flatnonzero(~matched[:count])


def _places(group: np.ndarray, groups: int) -> np.ndarray:
    places = np.full(groups, -1)
    places[group] = np.arange(len(group))
    return places

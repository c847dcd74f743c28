"""The driver's values in JSON form."""

import math
from collections.abc import Mapping, Set
from datetime import datetime
from typing import Any

import numpy as np
from cassandra.util import Date, Duration, SortedSet


def json_of(value: Any) -> Any:
    """Return a value in JSON form, as `core.printing.json_value` does for one of the lake: dates and times are in ISO
    8601, bytes are `0x...`, maps are lists of pairs unless their keys are text, and numbers that are not finite are
    texts. All other types without a form in JSON are texts, too.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
        case bytes():
            return "0x" + value.hex()
        case datetime():
            return f"{np.datetime64(value, 'us')}Z"
        case Date():
            return str(np.datetime64(value.days_from_epoch, "D"))
        case Duration():
            return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
        case Mapping():
            pairs = [[json_of(key), json_of(each)] for key, each in value.items()]
            return dict(pairs) if all(isinstance(key, str) for key in value) else pairs
        case tuple() if hasattr(value, "_fields"):
            # A user-defined type.
            names: Any = value
            return {name: json_of(each) for name, each in zip(names._fields, value, strict=True)}
        case list() | tuple() | Set() | SortedSet():
            return [json_of(each) for each in value]
    return str(value)

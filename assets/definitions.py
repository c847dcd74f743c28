"""The code location of an installation: the whole platform, by the settings in force."""

from writetime.core import config
from writetime_dagster.assets.wiring import platform

defs = platform(config.load())

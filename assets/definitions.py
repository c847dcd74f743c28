"""The code location of an installation: the whole platform, as the current settings define it."""

from writetime.core import config
from writetime_dagster.assets.wiring import platform

defs = platform(config.load())

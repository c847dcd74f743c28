"""Dagster: one module a stage, and `definitions`, which wires them."""

import warnings

from dagster import BetaWarning

# Code references, observed sources and backfill policies: the version is pinned, and tests see what changes.
warnings.filterwarnings("ignore", category=BetaWarning)

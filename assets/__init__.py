"""Dagster: one module per stage, and `definitions`, which wires them."""

import warnings

from dagster import BetaWarning

# Code references, observed sources and backfill policies are beta. The version is pinned, and tests notice changes.
warnings.filterwarnings("ignore", category=BetaWarning)

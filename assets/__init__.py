"""Dagster: one module per stage, and `definitions`, which wires them."""

import warnings

import dagster as dg

# Code references, observed sources and backfill policies are beta, and completing all assets at once is a preview. The
# version is pinned, and tests notice changes.
for category in (dg.BetaWarning, dg.PreviewWarning):
    warnings.filterwarnings("ignore", category=category)

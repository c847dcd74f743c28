"""Dagster: one module per stage, and `definitions`, which wires them."""

import warnings

from dagster import BetaWarning, PreviewWarning

# Code references, observed sources and backfill policies are beta, and completing all assets at once is a preview. The
# version is pinned, and tests notice changes.
for category in (BetaWarning, PreviewWarning):
    warnings.filterwarnings("ignore", category=category)

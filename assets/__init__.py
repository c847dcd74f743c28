"""The Dagster code location: one module a stage, wired in `definitions`."""

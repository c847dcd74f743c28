"""The continuous pipeline: it lands changes, computes and publishes row events, and refreshes views."""

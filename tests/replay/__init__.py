"""Tests of replayable pub/sub."""

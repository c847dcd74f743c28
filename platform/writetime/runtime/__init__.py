"""The runtime that is not Python: pinned jars, Java, nodetool."""

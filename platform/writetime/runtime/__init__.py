"""The runtime beside Python: pinned jars, Java, nodetool."""

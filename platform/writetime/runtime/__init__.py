"""What production runs on beside Python: pinned jars, Java, nodetool."""

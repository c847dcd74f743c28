"""Lets a Python worker of Spark end without a traceback if its output is no longer wanted, as after `show(3)`.

Spark closes the connection to the worker of a data source as soon as it has enough rows. Further output of the worker
then fails. Most of it has left the data source already, so the source cannot catch the error: it occurs where
`pyspark.daemon` (Spark 4.2) flushes the connection. The daemon prints the traceback and ends the worker, and the query
succeeds. Spark has no option that leaves out the traceback.
"""

import sys
import traceback
from types import SimpleNamespace


def end_quietly() -> None:
    """Let this process, if it is a worker of Spark's daemon, print no traceback of a connection that Spark closed.

    It replaces the module `traceback` in the daemon's own code, in this process alone. All other errors are printed.
    """
    daemon = sys.modules["__main__"]
    if getattr(getattr(daemon, "__spec__", None), "name", None) == "pyspark.daemon":
        vars(daemon)["traceback"] = SimpleNamespace(**{**vars(traceback), "print_exc": _print_others})


def _print_others() -> None:
    if not isinstance(sys.exc_info()[1], ConnectionError):
        traceback.print_exc()

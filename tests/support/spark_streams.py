"""Streams of Spark on a busy machine."""

from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

_ATTEMPTS = 3


def run_stream(start: Callable[[], StreamingQuery], wait: Callable[[StreamingQuery], object]) -> StreamingQuery:
    """Start a query and wait for it; return it.

    Spark gives the Python worker of a stream 10 seconds to connect, which no setting changes. A query that ends by it
    continues where it stopped when it is started again.
    """
    attempts_left = _ATTEMPTS
    while True:
        query = start()
        attempts_left -= 1
        try:
            wait(query)
            return query
        except PySparkException as e:
            if "worker failed to connect back" not in str(e) or not attempts_left:
                raise

"""Work that is done again and again while a test does something else."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def repeated(work: Callable[[], object], pause: float, threads: int = 1) -> Iterator[None]:
    """Call a function in threads during a block, after a pause (seconds) each time. Raise its error at the end."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(pause):
            work()

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(repeat) for _ in range(threads)]
        try:
            yield
        finally:
            stop.set()
        for each in running:
            each.result()

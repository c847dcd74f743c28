"""The metrics that programs export while they run, and those that alarms and panels use."""

import re
import threading
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from tools import alarms

_KINDS = ("_total", "_bucket", "_sum", "_count")


def used(program: str) -> set[str]:
    """Return the metrics of a program, such as `capture`, that alarms and panels use."""
    texts = [entry["expr"] for entry in (*alarms.alarms(), *alarms.panels())]
    return {_family(name) for text in texts for name in re.findall(rf"writetime_{program}_\w+", text)}


@contextmanager
def scraped(ports: Collection[int]) -> Iterator[set[str]]:
    """Collect the metrics that programs export at these ports inside the block; some programs run for a part of it."""
    names: set[str] = set()
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(0.5):
            for port in ports:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                        text = answer.read().decode()
                except OSError:
                    continue
                names.update(_family(family.name) for family in text_string_to_metric_families(text))

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield names
    finally:
        ended.set()
        thread.join()


def _family(name: str) -> str:
    for kind in _KINDS:
        name = name.removesuffix(kind)
    return name

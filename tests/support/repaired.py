"""A table of the lake whose commands are run with the remedies that their errors name, and its rows by each part."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from tests.support.published import command

NAME = "shop.items"
Rows = Mapping[tuple[int, int], str]
"""The text `v` of each row, by `id` and `n`."""

_REMEDY = re.compile(rf"`writetime (rebuild {re.escape(NAME)}(?: \w+)?)`")
# One for each part.
_MOST = 5


def settings_of(folder: Path, path: str = "", options: Mapping[str, str] | None = None) -> Path:
    """Write settings with a lake in a folder, or at another path. Nothing is cached, so that each command reads the
    files.
    """
    file = folder / "writetime.toml"
    lines = [f'path = "{path or folder / "lake"}"', f'cache = "{folder / "cache"}"', "cache_gib = 0", "buckets = 4"]
    lines += [f'storage_options.{name} = "{value}"' for name, value in (options or {}).items()]
    file.write_text("\n".join(["[lake]", *lines, ""]))
    return file


def repaired(*given: str, then: Callable[[], object] = lambda: None) -> str:
    """Run a command, and the remedy of each of its errors, and `then` after it; return its output."""
    for _ in range(_MOST):
        answer = command(*given)
        if answer.exit_code == 0:
            return answer.stdout
        if not isinstance(answer.exception, SystemExit):
            assert answer.exception
            raise answer.exception
        [line] = answer.stderr.splitlines()
        found = _REMEDY.search(line)
        assert found, line
        remedy = command(*found[1].split())
        assert remedy.exit_code == 0, (line, remedy.output)
        then()
    raise AssertionError(f"{given} is never repaired")


def printed(then: Callable[[], object] = lambda: None) -> Rows:
    """The rows by `writetime view`."""
    lines = map(json.loads, repaired("view", NAME, "--format", "jsonl", then=then).splitlines())
    return {(row["id"], row["n"]): row["v"] for row in lines}


def replayed() -> Rows:
    """The rows that a consumer of the row events has."""
    rows: dict[tuple[int, int], str] = {}
    generation = 0
    for event in map(json.loads, repaired("row-events", NAME).splitlines()):
        if event["generation"] > generation:
            generation, rows = event["generation"], {}
        before, after = event["before"], event["after"]
        key = (after or before)["id"], (after or before)["n"]
        assert rows.pop(key, None) == (before and before["v"])
        if after:
            rows[key] = after["v"]
    return rows


def assert_right(
    table: Path | str,
    wanted: Rows,
    then: Callable[[], object] = lambda: None,
    options: Mapping[str, str] | None = None,
) -> None:
    """Each command has these rows, after the remedies of its errors, and so has Polars, with the store's options."""
    assert printed(then) == wanted
    repaired("maintain", NAME, then=then)
    frame = pl.read_delta(f"{table}/view", storage_options=dict(options or {})).sort("id", "n")
    assert {(i, n): v for i, n, v in frame.select("id", "n", "v").rows()} == wanted
    repaired("publish", NAME, "--lake-only", then=then)
    assert replayed() == wanted
    assert printed(then) == wanted

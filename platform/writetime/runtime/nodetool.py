"""Cassandra's own `nodetool`: the program on the `PATH`, or else that of the embedded server's jars, on any JDK 17.

A node's agent runs on the machine of the node, which has a nodetool of the same version. A nodetool of another version
may call operations that the node does not have: the `clearsnapshot` of 5.0 fails on 4.0 and 4.1. Also, an agent is
installed without Spark, whose Ivy fetches the jars, and often without a JDK 17.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from writetime.core.errors import WritetimeError
from writetime.core.extras import needs
from writetime.runtime import jars
from writetime.runtime.cassandra_java import module_options
from writetime.runtime.java import java

_SOURCE = Path(__file__).with_name("rmiURLContextFactory.java")


def nodetool(port: int, *arguments: str, timeout_seconds: float = 600.0) -> None:
    """Run a command of `nodetool` against the JMX port of a node on this machine. Raises WritetimeError: nodetool
    failed (the error has its output), did not end, or is missing.
    """
    with _program() as program:
        command = [*program, "-h", "127.0.0.1", "-p", str(port), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
        except subprocess.TimeoutExpired:
            raise WritetimeError(
                f"nodetool {' '.join(arguments)} did not end in {timeout_seconds:g} s: see the log of the node at JMX "
                f"port {port}"
            ) from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith(("error:", "nodetool:"))]
        raise WritetimeError(f"nodetool {' '.join(arguments)} failed: {' '.join(said) or done.stderr or done.stdout}")


@contextmanager
def _program() -> Iterator[Sequence[str]]:
    """Yield the command of `nodetool` on this machine."""
    if (own := shutil.which("nodetool")) is not None:
        yield [own]
        return
    if not jars.has_ivy():
        raise WritetimeError(
            "there is no nodetool: put the folder of the node's own nodetool on the PATH; otherwise, "
            f"{needs('embedded')}"
        )
    class_path = [_classes(), *jars.fetch("cassandra")]
    with tempfile.TemporaryDirectory() as home:
        yield [
            str(java()),
            *module_options(),
            "-Xmx96m",
            # It runs for a moment only.
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            # The JDK that comes from PyPI cannot look up an RMI address by JNDI itself.
            "-Djava.naming.factory.url.pkgs=writetime",
            # It keeps a history of its commands there.
            f"-Duser.home={home}",
            "-cp",
            os.pathsep.join(map(str, class_path)),
            "org.apache.cassandra.tools.NodeTool",
        ]


def _classes() -> Path:
    """Compile our class once per version of it, with the compiler among Cassandra's jars; return the class path."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    folder = jars.cache_folder().parent / "classes" / digest
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    compiler = next(p for p in jars.fetch("cassandra") if "ecj" in p.name)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        target = Path(made) / "made"
        command = [java(), "-jar", compiler, "-17", "-nowarn", "-d", target, _SOURCE]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise WritetimeError(f"{_SOURCE.name} cannot be compiled: {(done.stdout + done.stderr)[-500:]}")
        # Another process may have been faster.
        if not folder.is_dir():
            target.rename(folder)
    return folder

"""Cassandra's own classes as the oracle: a small Java program, compiled by the ecj in Cassandra's jars."""

import atexit
import functools
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from writetime.runtime import jars
from writetime.runtime.cassandra_java import module_options
from writetime.runtime.java import java
from writetime.runtime.nodetool import _classes
from writetime.schema.table import TableSchema
from writetime.schema.types import Udt, quote_name

_CONFIGURATION = {
    "cluster_name": "oracle",
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "SimpleSnitch",
    "storage_compatibility_mode": "NONE",
    "cdc_enabled": False,
    "commitlog_sync": "periodic",
    "commitlog_sync_period": "10s",
    "seed_provider": [
        {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [{"seeds": "127.0.0.1"}]}
    ],
}

# The jars whose classes answer, and the folder of the calls that differ in these.
_VERSION = ["cassandra", "before_6"]


def use(jar_set: str, calls: str) -> None:
    """Let the classes of another version of Cassandra answer, from now on."""
    _VERSION[:] = [jar_set, calls]


@functools.cache
def _home() -> Path:
    """Compile the program once a session, into a folder that goes away with the session."""
    home = Path(_keep().name)
    configuration = dict(_CONFIGURATION)
    for name in ("commitlog_directory", "hints_directory", "saved_caches_directory", "cdc_raw_directory"):
        configuration[name] = str(home / name)
    configuration["data_file_directories"] = [str(home / "data")]
    (home / "cassandra.yaml").write_text(json.dumps(configuration))
    (home / "logback.xml").write_text("<configuration/>")
    compiler = next(p for p in jars.fetch("cassandra") if "ecj" in p.name)
    here = Path(__file__).parent
    sources = [*here.glob("*.java"), *(here / _VERSION[1]).glob("*.java")]
    command = [java(), "-jar", compiler, "-8", "-nowarn", "-cp", _class_path(), "-d", home, *sources]
    answer = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert answer.returncode == 0, (answer.stdout + answer.stderr)[:3000]
    return home


@functools.cache
def _keep() -> Any:
    return tempfile.TemporaryDirectory(prefix="oracle")


def _class_path() -> str:
    return os.pathsep.join(map(str, jars.fetch(_VERSION[0])))


def java_command(*arguments: str | Path) -> list[str]:
    """Return the command line that runs a class of Cassandra's, or `Oracle`, without a server."""
    home = _home()
    return [
        str(java()),
        *module_options(),
        f"-Dcassandra.config={(home / 'cassandra.yaml').as_uri()}",
        f"-Dcassandra.storagedir={home}",
        f"-Duser.home={home}",
        f"-Dlogback.configurationFile={home / 'logback.xml'}",
        # As `writetime.runtime.nodetool` has it.
        "-Djava.naming.factory.url.pkgs=writetime",
        "-Xmx1g",
        "-XX:+UseSerialGC",
        "-cp",
        os.pathsep.join([str(home), str(_classes()), _class_path()]),
        *map(str, arguments),
    ]


# Frequent requests, to a process that continues. The others change the state of their process, or measure it.
_SERVED = {"commitlog", "commitlog-ends", "compare", "dump", "nodetool", "order", "sstable", "statistics", "vints"}
_LOCK = threading.Lock()


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the oracle once a session: a start takes a second of CPU. It ends when its input does."""
    command = java_command("Oracle", "serve")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    atexit.register(process.communicate)
    return process


def _ask(line: str) -> None:
    server = _server()
    assert server.stdin
    assert server.stdout
    said: list[str] = []
    with _LOCK:
        server.stdin.write(line + "\n")
        server.stdin.flush()
        while not said or said[-1] not in ("answered\n", "failed\n", ""):
            said.append(server.stdout.readline())
    if not said[-1]:
        # A nodetool that cannot connect ends its process.
        _server.cache_clear()
    assert said[-1] == "answered\n", "".join(said)[-3000:]


def run(mode: str, *arguments: str | Path) -> list[dict[str, Any]]:
    """Run the oracle and return the lines that it printed."""
    return [json.loads(line) for line in _printed(mode, *arguments).splitlines()]


def _printed(mode: str, *arguments: str | Path) -> str:
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as output:
        if mode in _SERVED:
            _ask("\t".join(map(str, [mode, output.name, *arguments])))
            return Path(output.name).read_text()
        command = java_command("Oracle", mode, output.name, *arguments)
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
        return Path(output.name).read_text()


def sstables(paths: Iterable[str | Path]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows that `SSTableReader` reads in each Data.db file."""
    found: dict[str, list[dict[str, Any]]] = {}
    lines: list[dict[str, Any]] = []
    for line in run("sstable", *paths):
        if "file" in line:
            lines = found.setdefault(line["file"], [])
        else:
            lines.append(line)
    return found


def statistics(paths: Iterable[str | Path]) -> list[dict[str, Any]]:
    """Return what Statistics.db records of each Data.db file, the number of its keys, how many of these its filter and
    its index find, and how many of a hundred others per key its filter finds.
    """
    return run("statistics", *paths)


def _statements(schemas: Iterable[TableSchema], udts: Iterable[Udt]) -> str:
    statements = []
    for udt in udts:
        fields = ", ".join(f"{quote_name(n)} {t}" for n, t in udt.fields)
        statements.append(f"-- {udt.keyspace}\nCREATE TYPE {udt.keyspace}.{udt.name} ({fields})\n")
    for schema in schemas:
        statements.append(f"-- {schema.keyspace} {schema.id}\n{schema.create_statement()}\n")
        for column in schema.dropped:
            kind = "STATIC" if column.static else "REGULAR"
            statements.append(f"--dropped {kind} {column.dropped_at} {column.name} {column.type}\n")
    return "".join(statements)


def segments(
    schemas: Iterable[TableSchema], udts: Iterable[Udt], paths: Iterable[str | Path], mode: str = "commitlog"
) -> list[dict[str, Any]]:
    """Return the changes of these tables that `CommitLogReader` reads in segments, or its time (`commitlog-scan`)."""
    with tempfile.NamedTemporaryFile("w", suffix=".cql") as file:
        file.write(_statements(schemas, udts))
        file.flush()
        return run(mode, file.name, *paths)


def order(
    schemas: Iterable[TableSchema], udts: Iterable[Udt], prefixes: Iterable[Sequence[str]]
) -> list[dict[str, Any]]:
    """Sort clusterings and bounds by `ClusteringComparator`: each a keyspace, table, kind, and CQL literals."""
    return _of_lines("order", schemas, udts, prefixes)


def compared(schemas: Iterable[TableSchema], udts: Iterable[Udt], pairs: Iterable[tuple[str, bytes, bytes]]) -> Any:
    """Compare serialised clusterings of tables with one clustering column by `ClusteringComparator`: each a table's
    full name, and two values; -1, 0 or 1.
    """
    lines = [(*name.split("."), *(f"bytes {v.hex()}" for v in values)) for name, *values in pairs]
    return _of_lines("compare", schemas, udts, lines)


def _of_lines(
    mode: str, schemas: Iterable[TableSchema], udts: Iterable[Udt], parts: Iterable[Sequence[str]]
) -> list[Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".cql") as cql, tempfile.NamedTemporaryFile("w") as lines:
        cql.write(_statements(schemas, udts))
        lines.writelines("\t".join(each) + "\n" for each in parts)
        cql.flush()
        lines.flush()
        return run(mode, cql.name, lines.name)


def craft(folder: Path) -> None:
    """Write SSTables by Cassandra's own writer, into `VERSION/TABLE`, of the tables of `Craft.java`."""
    run("craft", folder)


def craft_counters(folder: Path, lines: Iterable[str]) -> None:
    """Write SSTables of counters by lines that `Craft.counters` explains."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(lines))
        file.flush()
        run("craft-counters", folder, file.name)


def vints(values: Iterable[int]) -> dict[int, bytes]:
    """Encode numbers as unsigned vints, by `VIntCoding`."""
    return {line["value"]: bytes.fromhex(line["bytes"]) for line in run("vints", *map(str, values))}


def dumped(path: str | Path) -> list[dict[str, Any]]:
    """Return the output of `sstabledump` for a Data.db file, from the class of Cassandra that it uses."""
    return json.loads(_printed("dump", path))


def run_tools(configuration: Path, commands: Iterable[Sequence[str]]) -> str:
    """Run tools of Cassandra for a stopped node, each the name of a class and its arguments, in one process. Return
    what they print: of each in the end `status NUMBER of ...`.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.write("".join("\t".join(command) + "\n" for command in commands))
        file.flush()
        # The later one of two equal options counts.
        node = [f"-Dcassandra.config={configuration.as_uri()}", f"-Dcassandra.storagedir={configuration.parent}"]
        command = java_command(*node, "Tools", file.name)
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
        return answer.stderr + answer.stdout


def nodetool(port: int, *arguments: str) -> None:
    """Run a command of Cassandra's `nodetool` without a start of its own, which would take 0.7 s of CPU."""
    run("nodetool", "-h", "127.0.0.1", "-p", str(port), *arguments)


def accepted(paths: Iterable[str | Path]) -> list[list[int]]:
    """Return for each segment the ends of the mutations that Cassandra takes from it when it starts."""
    return [line["ends"] for line in run("commitlog-ends", *paths)]

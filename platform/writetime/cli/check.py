"""`writetime check`: the prerequisites of all programs, one line per fault.

The checks take seconds and change nothing. `writetime status` shows the progress of agents, landing and queues, and
`writetime verify` compares views with the database.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from writetime import servers
from writetime.capture.node_facts import read_facts
from writetime.capture.node_schemas import Node
from writetime.capture.segments import backlog_of
from writetime.clients import database, zookeeper
from writetime.clients.kafka import answers, fault_of_connections, topic_names
from writetime.clients.tls import files_of, require_readable
from writetime.clients.topic_options import Keeps, faults_of
from writetime.core import config
from writetime.core.config import InvalidSettings, Settings
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.extras import is_installed
from writetime.core.settings_sources import exposed
from writetime.delta.storage import lake_storage
from writetime.ingest.topics import kept_in
from writetime.lake.followed_tables import cdc_statement, followed_tables, is_captured
from writetime.runtime.java import java
from writetime.servers.process import port_answers
from writetime.verify.masked_columns import masking_fault
from writetime.view.expected_rows import of_entry
from writetime.wire.publishing import SCHEMAS_TOPIC
from writetime.wire.topic_names import keeps_of
from writetime.wire.watermarks import WATERMARKS_TOPIC

_ZOOKEEPER_SECONDS = 5
_LEAST_FREE_BYTES = 1 << 30


class CheckFault(str):
    """A line about something that is wrong, with the remedy. Any other line is about something that is fine."""


@click.command()
def check() -> None:
    """Check settings, table entries, servers, Java, ports and disks: one line per fault, with the remedy.

    The exit status is 1 if there is a fault. If there is none, one line per check.
    """
    found = list(_all())
    faults = [(name, line) for name, line in found if isinstance(line, CheckFault)]
    for name, line in faults or found:
        click.echo(f"{name:<10} {' '.join(line.split())}")
    sys.exit(1 if faults else 0)


def _all() -> Iterator[tuple[str, str]]:
    """Yield the name and a line of each check. A check that fails does not stop the others."""
    try:
        settings = config.load()
    except InvalidSettings as e:
        yield from (("settings", CheckFault(fault)) for fault in e.faults)
    except WritetimeError as e:
        yield "settings", CheckFault(e)
    else:
        yield "settings", f"{config.config_path()} and WRITETIME_* variables are valid"
        for name, lines in _CHECKS.items():
            try:
                yield from ((name, line) for line in lines(settings))
            except Exception as e:
                yield name, CheckFault(reason_of(e))
    try:
        yield "java", f"{java()} is Java 17"
    except WritetimeError as e:
        # An agent's machine needs no Java of ours.
        needed = is_installed("pyspark")
        yield "java", CheckFault(e) if needed else "is not needed, because Spark is not installed"


def _secrets(settings: Settings) -> Iterator[str]:
    """Yield the files with secrets that all users can read, and those of TLS that this program cannot read."""
    for path in exposed(config.config_path(), os.environ.get(config.SECRETS_VARIABLE)):
        yield CheckFault(f"every user of this machine can read {path}, which has secrets: run `chmod o-r {path}`")
    of_ingest = files_of("ingest", settings.ingest)
    for setting, file in (files_of("schema_registry", settings.schema_registry) | of_ingest).items():
        try:
            require_readable({setting: file})
        except WritetimeError as e:
            yield CheckFault(e)
    yield "files with secrets and certificates can be read by this program, and not by every user"


def _tables(settings: Settings) -> Iterator[str]:
    tables, refused = followed_tables(settings)
    for table in tables if is_installed("great_expectations") else ():
        try:
            of_entry(table)
        except WritetimeError as e:
            yield CheckFault(e)
    yield from (CheckFault(f"{entry.name} is refused: {entry.reason}") for entry in refused)
    yield f"{len(tables)} followed"


def _database(settings: Settings) -> Iterator[str]:
    """Yield also the tables whose changes the database does not log."""
    followed = followed_tables(settings)[0]
    captured = [table.name for table in followed if table.entry.capture]
    with database.connect(settings) as session:
        yield f"answers at {', '.join(settings.cassandra.contact_points)}, port {settings.cassandra.port}"
        for table in followed:
            if (masked := masking_fault(session, *table.name.split(".", 1))) is not None:
                yield CheckFault(masked)
        if settings.capture.source == "commitlog" and captured:
            row = session.execute("SELECT value FROM system_views.settings WHERE name = 'cdc_enabled'").one()
            if row is not None and row.value != "true":
                yield CheckFault(
                    "cdc_enabled is false: set it to true in cassandra.yaml on each node, and restart the nodes"
                )
                return
        for name in captured:
            if not is_captured(session, settings, name):
                remedy = cdc_statement(settings, name)
                yield CheckFault(f"{name} is captured, but the database does not log its changes: {remedy}")


def _capture(settings: Settings) -> Iterator[str]:
    """Yield whether this machine's node will soon refuse writes because no agent publishes its segments."""
    if settings.capture.source != "commitlog":
        yield "the agent reads no segments"
        return
    with database.connect(settings) as session:
        try:
            facts = read_facts(Node(session, settings.capture.node))
        except WritetimeError:
            if settings.capture.node is not None:
                raise
            yield "capture.node names no node, so no agent runs on this machine"
            return
    cdc_raw = settings.capture.cdc_raw or Path(facts.cdc_raw or "")
    if not facts.cdc_enabled or not cdc_raw.is_dir():
        yield f"no node of this machine writes segments to {cdc_raw}"
        return
    share = backlog_of(cdc_raw) / facts.total_bytes if facts.total_bytes else 0.0
    line = f"{cdc_raw} holds {share:.0%} of the node's cdc_total_space"
    if share >= settings.capture.backlog_warning:
        line = CheckFault(
            f"{line}, and when it is full the node refuses writes, or deletes segments: start `writetime agent` on "
            "this machine; if it runs, `writetime status` shows why it publishes nothing"
        )
    yield line


def _kafka(settings: Settings) -> Iterator[str]:
    brokers = settings.kafka.bootstrap_servers
    if answers(settings):
        there = set(topic_names(settings))
        of_ingest = {topic: keeps for topic, keeps in kept_in(settings).items() if topic in there}
        others = {topic: keeps for topic in there if (keeps := _kept_in(topic)) is not None}
        found = faults_of(
            settings,
            {topic: of_ingest[topic] for topic in there & of_ingest.keys()},
            settings.ingest.max_event_bytes,
        )
        for faults in (found | faults_of(settings, others)).values():
            yield from map(CheckFault, [faults] if isinstance(faults, WritetimeError) else faults)
        yield f"answers at {brokers}"
        return
    reason = fault_of_connections(settings) or "no answer within a second"
    yield CheckFault(
        f"no broker answers at {brokers} ({reason}); start the embedded servers with `writetime up`, or set "
        "kafka.bootstrap_servers and kafka.client"
    )


def _kept_in(topic: str) -> Keeps | None:
    """Return the messages that Kafka must keep in a topic of the platform; None for another topic."""
    if topic in (SCHEMAS_TOPIC, WATERMARKS_TOPIC):
        return Keeps.LATEST
    return keeps_of(topic)


def _zookeeper(settings: Settings) -> Iterator[str]:
    with zookeeper.connect(settings, _ZOOKEEPER_SECONDS):
        yield f"answers at {settings.zookeeper.hosts}"


def _ports(settings: Settings) -> Iterator[str]:
    """Yield the ports of embedded servers that do not run, if other programs have them."""
    all_servers = servers.servers(settings)
    servers.require_distinct_ports(all_servers)
    for server in all_servers:
        if server.pid() is not None:
            continue
        for setting, port in server.ports.items():
            if port_answers(port):
                yield CheckFault(
                    f"{port} of {server.name} belongs to another program: stop it, or change {setting}; if it is your "
                    f"own {server.name}, leave {server.name} out of embedded.servers"
                )
    yield "all embedded servers can use their ports"


def _disk(settings: Settings) -> Iterator[str]:
    lake = lake_storage(settings)
    folders = {
        "capture.state_dir": settings.capture.state_dir,
        "alerts.reports": settings.alerts.reports,
        **({"embedded.home": settings.embedded.home} if settings.embedded.servers else {}),
        **({"lake.path": Path(lake.address)} if lake.is_local else {}),
    }
    for setting, folder in folders.items():
        there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            yield CheckFault(f"{there} is not a writable folder: correct its permissions, or set {setting}")
        elif (free := shutil.disk_usage(there).free) < _LEAST_FREE_BYTES:
            yield CheckFault(
                f"{there} has {free / (1 << 20):,.0f} MiB free: free some, or set {setting} to another disk"
            )
    yield f"all folders are writable; the lake is at {lake.address}"


_CHECKS: dict[str, Callable[[Settings], Iterator[str]]] = {
    "secrets": _secrets,
    "tables": _tables,
    "database": _database,
    "capture": _capture,
    "kafka": _kafka,
    "zookeeper": _zookeeper,
    "ports": _ports,
    "disk": _disk,
}

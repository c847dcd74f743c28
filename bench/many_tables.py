"""The cost of landing many tables without new messages, on a separate broker.

python -m bench.many_tables --tables 300

It prints the CPU seconds of `writetime land` as a complete program, and the cores that `writetime follow` uses.
"""

import argparse
import dataclasses
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.logs import log_to_file
from tests.support.made import SCHEMA, batch, write
from tests.support.settings import write_settings
from writetime.capture.change_publisher import ChangePublisher
from writetime.core import config
from writetime.core.config import Settings
from writetime.lake.views import time_now
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import free_port
from writetime.wire import watermarks
from writetime.wire.publishing import Sender
from writetime.wire.watermarks import SourceMarks, TableMark, ensure_watermarks_topic


def children_cpu() -> float:
    """Return the CPU seconds of the programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def publish(settings: Settings, tables: int) -> None:
    """Publish a change of each table, and report that all changes of a node until now are published."""
    publisher = ChangePublisher(settings)
    schemas = [dataclasses.replace(SCHEMA, name=f"t{i:03}") for i in range(tables)]
    for schema in schemas:
        publisher.send(schema, batch([write(1, 0, 5, v="x")], schema))
    publisher.flush()
    ensure_watermarks_topic(settings)
    sender = Sender(settings, "bench")
    watermarks.send(sender, "node", SourceMarks({s.full_name: TableMark(time_now()) for s in schemas}))
    sender.flush()


def started(command: str) -> "subprocess.Popen[bytes]":
    """Start a command."""
    return subprocess.Popen([sys.executable, "-m", "writetime", command], stdout=subprocess.DEVNULL)


def main() -> None:
    """Measure, and print the cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument(
        "--seconds", type=int, default=300, help="duration of `follow`; its first third, the start, is not measured"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        settings = config.load(
            kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"},
            embedded={"home": home, "kafka_controller_port": free_port()},
            lake={"path": str(home / "lake")},
            capture={"partitions": 4},
        )
        write_settings(settings, home / "writetime.toml")
        os.environ["WRITETIME_CONFIG"] = str(home / "writetime.toml")
        kafka = KafkaServer(settings)
        kafka.start()
        try:
            publish(settings, arguments.tables)
            for what in ("the first time", "with nothing new"):
                before = children_cpu()
                assert started("land").wait() == 0
                print(f"land {what}: {children_cpu() - before:.2f} CPU s", flush=True)
            print(f"follow, idle: {_followed(arguments.seconds):.3f} cores", flush=True)
        finally:
            kafka.stop()


def _followed(seconds: int) -> float:
    process = started("follow")
    try:
        time.sleep(seconds / 3)
        before = _cpu(process.pid)
        time.sleep(seconds * 2 / 3)
        return (_cpu(process.pid) - before) / (seconds * 2 / 3)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a running program: the 14th and 15th field of its `stat` (proc(5)), in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    log_to_file()
    main()

"""The size that a cluster needs, by a simulation with the costs that the other benchmarks measured.

    python -m bench.sizing                # the table of docs/cluster.md
    python -m bench.sizing --measure      # the cost of landing, and bytes per change, with a separate broker
    python -m bench.sizing --writes 30000 --tables 40 --nodes 6

Throughput is arithmetic: costs times rates. The freshness of the lake is not, because the changes of a table wait for
those of others. So it is simulated, with writes at random times to random tables, which land table by table.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.generated import ROWS, updates
from bench.logs import log_to_file
from writetime.capture.change_publisher import ChangePublisher
from writetime.core import config
from writetime.lake.table import open_table
from writetime.landing.landing import Landing
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import free_port
from writetime.wire.topic_names import changes_topic

REPLICAS = 3
# The share of a core that is used, so that late work catches up: at one half, an hour's outage needs an hour.
_LOAD = 0.5
# Changes per second of a topic's partition: a third of the rate at which a core lands, because partitions are uneven.
_PARTITION_CHANGES = 50_000
# The size of the simulation, and the number of writes of a table that stand for all of them.
_SECONDS = 60
_SAMPLE = 20_000


@dataclass(frozen=True)
class Costs:
    """CPU microseconds and bytes per change, and the cost of a commit; a change has one cell."""

    # docs/benchmarks.md, Capture: 54,795 events per CPU second, start included; in Kafka 35 ms after the write.
    agent: float = 1e6 / 54_795
    publish_seconds: float = 0.035
    # This module, --measure, with 1,000,000 changes.
    landing: float = 5.81
    kafka_bytes: float = 43.4
    lake_bytes: float = 19.7
    # docs/benchmarks.md, Merge: in Spark's tasks, 10,000,000 updates, 3 per key, in 8.9 CPU seconds.
    fold: float = 0.89
    # docs/benchmarks.md, Row events: 431,082 updates per CPU second.
    events: float = 1e6 / 431_082
    # A commit also makes requests to the broker and to an object store. This assumes 100 ms per request.
    commit_seconds: float = 0.3


@dataclass(frozen=True)
class Load:
    """Writes per second to a number of tables on a number of nodes."""

    writes: int
    tables: int
    nodes: int

    @property
    def changes(self) -> int:
        """Changes per second; each replica's agent publishes each write."""
        return self.writes * REPLICAS


@dataclass(frozen=True)
class Size:
    """The size that a load needs. Numbers of cores are busy cores without a reserve, except for the landings."""

    agent_cores: float
    kafka_mb: float
    partitions: int
    landings: int
    landing_cores: float
    fold_cores: float
    event_cores: float
    lake_gb_a_day: float
    fresh_p50: float
    fresh_p99: float


LOADS = [Load(1_000, 10, 3), Load(10_000, 20, 6), Load(100_000, 50, 24)]


def size(load: Load, costs: Costs) -> Size:
    """Return the size that a load needs."""
    landing_cores = load.changes * costs.landing / 1e6
    # Each landing has one core, and lands some of the tables, one after the other.
    landings = min(max(1, int(np.ceil(landing_cores / _LOAD))), load.tables)
    late = freshness(load, landings, costs)
    a_table = load.changes / load.tables
    return Size(
        agent_cores=load.changes / load.nodes * costs.agent / 1e6,
        kafka_mb=load.changes * costs.kafka_bytes / 1e6,
        partitions=max(4, int(2 ** np.ceil(np.log2(a_table / _PARTITION_CHANGES)))),
        landings=landings,
        landing_cores=landing_cores,
        fold_cores=load.changes * costs.fold / 1e6,
        event_cores=load.changes * costs.events / 1e6,
        lake_gb_a_day=load.changes * costs.lake_bytes * 86_400 / 1e9,
        fresh_p50=float(np.quantile(late, 0.5)),
        fresh_p99=float(np.quantile(late, 0.99)),
    )


def freshness(load: Load, landings: int, costs: Costs, seed: int = 1) -> np.ndarray:
    """Simulate one landing with its part of the tables; return the delays of a sample of writes to the lake.

    Landing goes from table to table. A table costs a commit, and the CPU time of its messages that are in Kafka then.
    One round takes at least `follow.events_seconds`.
    """
    random = np.random.default_rng(seed)
    once_around = config.Follow().events_seconds
    tables = -(-load.tables // landings)
    rate = load.changes / load.tables
    count = min(int(rate * _SECONDS), _SAMPLE)
    each = rate * _SECONDS / count
    written = np.sort(random.uniform(0, _SECONDS, (tables, count)), axis=1)
    late: list[np.ndarray] = []
    done = np.zeros(tables, int)
    now = 0.0
    while now < _SECONDS:
        began = now
        for table in range(tables):
            reached = int(np.searchsorted(written[table], now - costs.publish_seconds))
            now += costs.commit_seconds + (reached - done[table]) * each * costs.landing / 1e6
            late.append(now - written[table, done[table] : reached])
            done[table] = reached
        now = max(now, began + once_around)
    return np.concatenate(late)


def table(loads: list[Load], costs: Costs) -> str:
    """Return the table of the documentation."""
    sizes = [size(load, costs) for load in loads]
    rows = [
        ("tables", [f"{load.tables}" for load in loads]),
        ("nodes", [f"{load.nodes}" for load in loads]),
        ("changes per second, of all replicas", [f"{load.changes:,}" for load in loads]),
        ("agent, cores per node", [f"{s.agent_cores:.2f}" for s in sizes]),
        ("Kafka, MB/s in, before its own replication", [f"{s.kafka_mb:.1f}" for s in sizes]),
        ("partitions per topic", [f"{s.partitions}" for s in sizes]),
        ("landing, cores", [f"{s.landing_cores:.2f}" for s in sizes]),
        ("landing, programs", [f"{s.landings}" for s in sizes]),
        ("fold, cores", [f"{s.fold_cores:.2f}" for s in sizes]),
        ("row events, cores", [f"{s.event_cores:.2f}" for s in sizes]),
        ("changes in the lake, GB per day", [f"{s.lake_gb_a_day:,.1f}" for s in sizes]),
        ("fresh, p50 / p99 seconds", [f"{s.fresh_p50:.1f} / {s.fresh_p99:.1f}" for s in sizes]),
    ]
    head = ["writes per second", *(f"{load.writes:,}" for load in loads)]
    lines = [head, ["---"] * len(head), *([name, *values] for name, values in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measure(count: int) -> str:
    """Publish changes and land them, on a separate broker; return the cost of each."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        settings = config.load(
            kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"},
            embedded={"home": home, "kafka_controller_port": free_port()},
            lake={"path": str(home / "lake")},
        )
        kafka = KafkaServer(settings)
        kafka.start()
        try:
            publisher = ChangePublisher(settings)
            landing = Landing(settings, ROWS.full_name)
            costs = []
            # The first round includes compilation.
            for number in (count // 10, count):
                for batch in updates(100_000, number, 1):
                    for start in range(0, batch.num_rows, 10_000):
                        publisher.send(ROWS, batch.slice(start, 10_000))
                publisher.flush()
                began = time.process_time()
                assert landing.drain() == number
                costs.append((time.process_time() - began) / number * 1e6)
            logs = list((kafka.folder / "data").glob(f"{changes_topic(ROWS.full_name)}-*/*.log"))
            files = open_table(settings, ROWS.full_name).changes.load().files
            there = count + count // 10
            kafka_bytes = sum(path.stat().st_size for path in logs) / there
            lake_bytes = sum(file.size for file in files) / there
        finally:
            kafka.stop()
    return f"per change: landing {costs[-1]:.2f} us, {kafka_bytes:.1f} bytes in Kafka, {lake_bytes:.1f} in the lake"


def main() -> None:
    """Print the table, or the measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--changes", type=int, default=1_000_000, help="number of measured changes")
    parser.add_argument("--writes", type=int, help="writes per second")
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    if options.measure:
        print(measure(options.changes))
    else:
        asked = [Load(options.writes, options.tables, options.nodes)] if options.writes else LOADS
        print(table(asked, Costs()))


if __name__ == "__main__":
    log_to_file()
    main()

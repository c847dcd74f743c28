"""Compare the upkeep of rows that change: CPU seconds per batch until readers see it and have read both images.

python -m bench.rows [--rows 1000000 10000000] [--shapes rows wide] [--peers iceberg ducklake paimon delta]
    [--batches 5]

Each batch goes to one system after the other. Its images are compared with those that DuckDB finds in a table of the
newest writes. After the batches of a kind, all rows are compared. The first two batches of each kind do not count.
`--peers` without a name runs Writetime alone. The peer `iceberg` is Writetime with `lake.iceberg = true`.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.generated import ROWS, WIDE
from bench.rows import delta, ducklake, paimon
from bench.rows.batches import Batch, Batches, Expected
from bench.rows.ours import WithIceberg, Writetime
from bench.rows.systems import Steps, System
from writetime.core.errors import WritetimeError
from writetime.schema.table import TableSchema

SHAPES = {"rows": ("a row per partition", ROWS), "wide": ("100,000 rows per partition", WIDE)}
OURS = "Writetime"
COLD = 2
"""The number of batches of each kind that come first and do not count."""

_LATE_SHARE = 0.01


@dataclass(frozen=True)
class Peer:
    """A peer. `cannot` has the reasons why it cannot take some kinds of batches."""

    title: str
    start: Callable[[TableSchema, Path], System]
    cannot: Mapping[str, str]


_SECOND = "it decides at a second of its own what has expired, so its rows may differ"
PEERS = {
    "iceberg": Peer("with Iceberg", WithIceberg, {"expiry": _SECOND, "late": _SECOND}),
    "ducklake": Peer("DuckLake", ducklake.DuckLake, ducklake.CANNOT),
    "paimon": Peer("Paimon", paimon.Paimon, paimon.CANNOT),
    "delta": Peer("Delta MERGE", delta.DeltaMerge, delta.CANNOT),
}


class Contest:
    """One table in all systems."""

    def __init__(self, schema: TableSchema, rows: int, peers: Sequence[Peer], folder: Path) -> None:
        self.rows = rows
        self._batches = Batches(schema, rows, _made(folder / "batches"))
        self._ours = Writetime(schema, _made(folder / "ours"))
        self._peers: dict[str, System] = {}
        for peer in peers:
            try:
                self._peers[peer.title] = peer.start(schema, _made(folder / peer.title.replace(" ", "-")))
            except WritetimeError as e:
                print(f"{peer.title} is left out: {str(e).splitlines()[0]}")
        first = self._batches.first()
        for system in self._all().values():
            system.load(first)
        self._expected = Expected(schema, first, folder)
        # The time at which the rows of the previous batch have expired, and the duration of a batch.
        self._expires_at = 0
        self._seconds = 1.0

    def updates(self, size: int, count: int) -> dict[str, list[Steps]]:
        """Update rows in `count` batches; return the cost of those that count, for each system."""
        return self._measure([lambda: self._batches.updates(size)] * count, self._all())

    def deletions(self, size: int, count: int) -> dict[str, list[Steps]]:
        """Delete rows; then compare the rows of all systems."""
        spent = self._measure([lambda: self._batches.deletions(size)] * count, self._all())
        self._compare_rows(self._all())
        return spent

    def expiring(self, size: int, count: int) -> dict[str, list[Steps]]:
        """Update rows with a TTL; those of a batch expire before the next one."""

        def batch() -> Batch:
            time.sleep(max(0, self._expires_at + 1 - time.time()))
            self._expires_at = int(time.time() + 2 + 3 * self._seconds)
            return self._batches.updates(size, self._expires_at)

        return self._measure([batch] * count, {OURS: self._ours})

    def late(self, size: int, count: int) -> dict[str, list[Steps]]:
        """Update rows, with some writes from before the horizon; then compare the rows."""
        time.sleep(max(0, self._expires_at + 1 - time.time()))
        self._ours.drop_tombstones(self._batches.next_time - 1)
        ours: dict[str, System] = {OURS: self._ours}
        spent = self._measure([lambda: self._batches.late(size, _LATE_SHARE)] * count, ours)
        self._compare_rows(ours)
        return spent

    def close(self) -> None:
        """Stop all systems."""
        for system in self._all().values():
            system.close()
        self._expected.close()

    def _all(self) -> dict[str, System]:
        return {OURS: self._ours, **self._peers}

    def _measure(self, made: Sequence[Callable[[], Batch]], systems: Mapping[str, System]) -> dict[str, list[Steps]]:
        spent: dict[str, list[Steps]] = {title: [] for title in systems}
        for make in made:
            batch, found = make(), {}
            for title, system in systems.items():
                start = time.perf_counter()
                steps, found[title] = system.apply(batch)
                spent[title].append(steps)
                if title == OURS:
                    self._seconds = time.perf_counter() - start
            wanted = self._expected.apply(batch, self._ours.second)
            for title, images in found.items():
                _require(f"{title}, images of batch {batch.number}", self._expected.digest(images), wanted)
            batch.path.unlink()
        return {title: steps[COLD:] for title, steps in spent.items()}

    def _compare_rows(self, systems: Mapping[str, System]) -> None:
        wanted = self._expected.rows()
        for title, system in systems.items():
            _require(f"{title}, all rows", self._expected.digest(system.rows()), wanted)


def main() -> None:
    """Print the cost of each kind of batches, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--batches", type=int, default=5, help="batches of each kind that count")
    options = parser.parse_args()
    peers = [PEERS[name] for name in options.peers]
    ratios: list[tuple[str, dict[str, float]]] = []
    for rows in options.rows:
        for title, schema in (SHAPES[name] for name in options.shapes):
            folder = Path(tempfile.mkdtemp())
            try:
                ratios += compare(
                    f"{title}, {rows:,} rows", Contest(schema, rows, peers, folder), peers, options.batches
                )
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    if peers:
        print("\nCPU of a peer / CPU of Writetime, by the medians")
        for what, found in ratios:
            print(f"  {what:70}" + ", ".join(f"{title} {ratio:.2f}" for title, ratio in found.items()))


def compare(what: str, contest: Contest, peers: Sequence[Peer], batches: int) -> list[tuple[str, dict[str, float]]]:
    """Print the costs for one table; return the ratios of the peers, by kind of batches."""
    size, few, count = min(10_000, contest.rows // 10), min(100, contest.rows // 10), batches + COLD
    kinds = {
        # Small batches come first, because large ones leave work to later ones: files of the view with marked rows.
        f"updates of {few:,} rows": ("few", contest.updates, few),
        f"updates of {size:,} rows": ("updates", contest.updates, size),
        f"deletions of {size:,} rows": ("deletions", contest.deletions, size),
        f"{size:,} rows expire, {size:,} are written with a TTL": ("expiry", contest.expiring, size),
        f"updates of {size:,} rows, 1 % of them late": ("late", contest.late, size),
    }
    ratios = []
    try:
        print(f"\n{what}: CPU s per batch, median (mean)")
        for title, (kind, work, of) in kinds.items():
            print(f"  {title}", flush=True)
            totals = {}
            for system, spent in work(of, count).items():
                sums = [sum(steps.values()) for steps in spent]
                totals[system] = statistics.median(sums)
                steps = ", ".join(f"{name} {statistics.median(each[name] for each in spent):.3f}" for name in spent[0])
                print(f"    {system:14}{totals[system]:>8.3f} ({statistics.mean(sums):.3f})  {steps}", flush=True)
            for peer in peers:
                if kind in peer.cannot:
                    print(f"    {peer.title:14}cannot: {peer.cannot[kind]}", flush=True)
            ratios.append((f"{what}, {title}", {s: t / totals[OURS] for s, t in totals.items() if s != OURS}))
    finally:
        contest.close()
    if any(peer is not PEERS["iceberg"] for peer in peers):
        print("  No other system keeps write times of cells, tombstones of ranges, or static columns.")
    return [(title, found) for title, found in ratios if found]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _require(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise RuntimeError(f"{what}: {found}, and not {wanted}")


if __name__ == "__main__":
    main()

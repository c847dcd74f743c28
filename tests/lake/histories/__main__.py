"""`python -m tests.lake.histories`: many histories in each storage format; exits with 1 if one fails."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.lake.histories.node import Node
from tests.lake.histories.plan import Plan, make_plan
from tests.lake.histories.run import alone, run_plans, shrink
from tests.support.format_server import FormatServer
from tests.support.generate import create_udts

FORMATS = ("nb", "oa", "da")


def main() -> int:
    """Run the plans of the requested seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=30, help="how many seeds, each a table of some histories")
    parser.add_argument("--histories", type=int, default=20, help="histories of a seed")
    parser.add_argument("--together", type=int, default=30, help="tables at a time in the node")
    parser.add_argument("--format", choices=FORMATS, help="the storage format; by default by seed, all three")
    parser.add_argument("--shrink-seconds", type=float, default=300.0, help="time to make a failure small; 0: none")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    failures = 0
    for version in [options.format] if options.format else FORMATS:
        chosen = [s for s in seeds if options.format or s % 3 == FORMATS.index(version)]
        if chosen:
            failures += run_format(version, chosen, options)
    print(f"{len(seeds)} seeds from {options.first}, {len(seeds) * options.histories} histories, {failures} failed")
    return 1 if failures else 0


def run_format(version: str, seeds: list[int], options: argparse.Namespace) -> int:
    """Run the plans of seeds on a node that writes this format; return how many failed."""
    failures = 0
    with tempfile.TemporaryDirectory(prefix="histories-") as home:
        server = FormatServer(Path(home), version)
        server.start()
        try:
            server.write(create_udts())
            with Node(server.port) as node:
                for i in range(0, len(seeds), options.together):
                    plans = [
                        make_plan(s, f"t{s}", histories=options.histories) for s in seeds[i : i + options.together]
                    ]
                    failures += run_some(version, plans, node, options.shrink_seconds)
        finally:
            server.stop()
    return failures


def run_some(version: str, plans: list[Plan], node: Node, shrink_seconds: float) -> int:
    """Run plans together and print their results; return how many failed."""
    began = time.monotonic()
    result = run_plans(plans, node)
    print(
        f"{version}: seeds {plans[0].seed} to {plans[-1].seed}: {sum(p.histories for p in plans)} histories, "
        f"{result.statements} statements, {result.comparisons} answers compared, {len(result.failures)} failed, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    for failure in result.failures:
        print(f"seed {failure.plan.seed} fails in round {failure.round}:\n{failure.reason}", flush=True)
        if shrink_seconds:
            small = shrink(failure, lambda plan: alone(plan, node), shrink_seconds)
            print(f"{small.plan}\n{small.reason}", flush=True)
    return len(result.failures)


if __name__ == "__main__":
    sys.exit(main())

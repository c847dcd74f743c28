"""The demo's report: the numbers of each stage, which must add up, and the proof, on one screen."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.figures import Figures
from demo.live import Delays


@dataclass(frozen=True)
class Sum:
    """Numbers that must be equal: a total, and its parts, each with its name."""

    total: tuple[int, str]
    parts: Sequence[tuple[int, str]]

    @property
    def holds(self) -> bool:
        """Return whether it adds up."""
        return self.total[0] == sum(count for count, _ in self.parts)

    def __str__(self) -> str:
        (count, what), sign = self.total, "=" if self.holds else "≠"
        return f"{count:,} {what} {sign} " + " + ".join(f"{part:,} {name}".rstrip() for part, name in self.parts)


@dataclass(frozen=True)
class Station:
    """A part of the platform that data passes: its name, its work, its asset in the web UI, and the number and name of
    the items that have reached it.
    """

    name: str
    does: str
    asset: str = ""
    arrived: tuple[int, str] | None = None


@dataclass(frozen=True)
class Stage:
    """A stage of the platform: its sums, a note, and the flows of its data, each with its stations in order."""

    name: str
    sums: Sequence[Sum]
    note: str = ""
    flows: Sequence[Sequence[Station]] = ()


@dataclass(frozen=True)
class Report:
    """All counts of the demo. `figures` are those of the data set, the database and the lake, by these names. `steps`
    has the description of each step of the demo and its duration in seconds.
    """

    stages: Sequence[Stage]
    figures: dict[str, Figures]
    checks: dict[str, bool]
    steps: dict[str, float]

    @property
    def proven(self) -> bool:
        """Return whether view, database and data set agree."""
        first, *others = self.figures.values()
        return all(other == first for other in others)

    @property
    def add_up(self) -> bool:
        """Return whether nothing was lost or stored twice."""
        return all(total.holds for stage in self.stages for total in stage.sums)

    @property
    def good(self) -> bool:
        """Return whether all counts and checks are as they must be."""
        return self.proven and self.add_up and all(self.checks.values())


def render(report: Report, delays: Delays, files: dict[str, Path]) -> str:
    """Return the report as text; `files` are the files with more details."""
    lines = [""]
    for stage in report.stages:
        lines += [f"  {stage.name if not i else '':<13}{total}" for i, total in enumerate(stage.sums)]
        if stage.note:
            lines.append(f"  {'':<13}{stage.note}")
    lines += ["", f"  {'the board':<13}" + "".join(f"{name:>14}" for name in report.figures)]
    for label, numbers in rows_of(report.figures):
        lines.append(f"  {label:<13}" + "".join(f"{number:>14,}" for number in numbers))
    lines += ["", *(f"  {'live' if not i else '':<13}{line}" for i, line in enumerate(delays.lines()))]
    verdict = "view = database = published figures" if report.proven else "VIEW, DATABASE AND PUBLISHED FIGURES DIFFER"
    sums = "nothing lost, nothing twice" if report.add_up else "THE NUMBERS DO NOT ADD UP"
    passed = sum(report.checks.values())
    failed = "".join(f"; failed: {name}" for name, ok in report.checks.items() if not ok)
    lines += [
        "",
        f"  {verdict}; {sums}",
        f"  checks between the stages: {passed} of {len(report.checks)} passed{failed}",
        "",
        *(f"  {what:<13}{where}" for what, where in files.items()),
        f"  {'look':<13}`make ui WORKSPACE=demo/workspace.yaml`, then http://127.0.0.1:3000: graph, runs, checks",
        f"  {'':<13}`.venv/bin/writetime view writetime.flights --where \"tail = 'N14228'\"`",
        f"  {'':<13}the servers keep running: `.venv/bin/writetime status`, `.venv/bin/writetime down`",
    ]
    return "\n".join(lines)


def rows_of(figures: dict[str, Figures]) -> list[tuple[str, list[int]]]:
    """Return the figures as rows: the name of a figure, and its number from each source."""
    origins = sorted({origin for of in figures.values() for origin in of.on_board})
    sides = list(figures.values())
    return [
        *((f"from {origin}", [of.on_board.get(origin, 0) for of in sides]) for origin in origins),
        ("departed", [of.departed for of in sides]),
        ("arrived", [of.arrived for of in sides]),
        ("cancelled", [of.cancelled for of in sides]),
        ("miles", [of.distance_miles for of in sides]),
    ]

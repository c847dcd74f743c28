"""The inputs of an attack and their outcomes."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """The counts of outcomes by target, the findings (outcomes that must not occur), and further results of a run."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, target: str, outcome: str) -> None:
        """Count an outcome."""
        self.counts.setdefault(target, Counter())[outcome] += 1

    @property
    def tried(self) -> int:
        """How many inputs were tried."""
        return sum(sum(counts.values()) for counts in self.counts.values())

    def text(self) -> str:
        """Return a table of the counts, and the findings after it."""
        outcomes = sorted({outcome for counts in self.counts.values() for outcome in counts})
        head = ["target", "tried", *outcomes]
        lines = [head]
        for target, counts in sorted(self.counts.items()):
            lines.append([target, str(sum(counts.values())), *(str(counts[outcome]) for outcome in outcomes)])
        total = [sum(counts[outcome] for counts in self.counts.values()) for outcome in outcomes]
        lines.append(["all", str(self.tried), *map(str, total)])
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        rows = [
            "  ".join(
                part.ljust(w) if i == 0 else part.rjust(w) for i, (part, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return "\n".join([*rows, *self.notes, f"{len(self.findings)} findings", *self.findings])

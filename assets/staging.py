"""The validation of files before they are committed: when suites of expectations run, and the effect of a failure.

The expectations are in `writetime_dagster.assets.expectations`.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import dagster as dg
from pyspark.sql import DataFrame

from writetime.clients import great_expectations
from writetime.clients.great_expectations import Finding, gxe
from writetime.delta.parquet import WrittenFile
from writetime_dagster.assets.checks import from_findings
from writetime_dagster.assets.failures import ToCorrect

_T = TypeVar("_T")


@dataclass(frozen=True)
class Suite:
    """The expectations of an asset check, its severity, and its remedy if it is not about Writetime itself."""

    expectations: "Callable[[], list[gxe.Expectation]]"
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
    remedy: str = ""


class StagedFiles:
    """Validates staged files with Great Expectations: one suite for each asset check.

    The engine calls it with the files before the commit, as `staged`. If an expectation of a check of severity ERROR is
    not met, it raises `ToCorrect`, and the files are not committed.
    """

    def __init__(
        self,
        suites: Mapping[str, Suite],
        frame: Callable[[Sequence[WrittenFile]], DataFrame],
        failure: str,
        *,
        count: Callable[[DataFrame], None] | None = None,
        keys: Sequence[str] = (),
        lacking: Callable[[], bool] = lambda: False,
    ) -> None:
        """Store the suites, and the functions that validate files.

        Args:
            suites: the suite of each check.
            frame: returns the rows of files.
            failure: the text of the failure.
            count: is called with each frame while Spark keeps it in memory.
            keys: the columns that identify a row in a failure.
            lacking: returns whether there must be rows. If it is false and there are no files, there is nothing to do.
        """
        self._suites = suites
        self._frame = frame
        self._failure = failure
        self._count = count
        self._keys = keys
        self._lacking = lacking
        self._findings: dict[str, list[Finding]] = {}

    def __call__(self, files: Sequence[WrittenFile]) -> None:
        """Validate files.

        Raises:
            ToCorrect: they are not as expected.
        """
        if not files and not self._lacking():
            return
        frame = self._frame(files).persist()
        try:
            suites = {check: suite.expectations() for check, suite in self._suites.items()}
            for check, expected in suites.items():
                found = great_expectations.validate(frame, check, expected, self._keys) if expected else []
                self._findings.setdefault(check, []).extend(found)
            if self._count:
                self._count(frame)
        finally:
            frame.unpersist()
        blocking = {
            name: suite for name, suite in self._suites.items() if suite.severity is dg.AssetCheckSeverity.ERROR
        }
        failed = {check: great_expectations.failed(self._findings.get(check, [])) for check in blocking}
        if faults := [fault for fault in failed.values() if fault]:
            remedies = [suite.remedy for check, suite in blocking.items() if suite.remedy and failed[check]]
            raise ToCorrect(f"{self._failure}: {'; '.join([*faults, *remedies])}")

    def during(self, work: Callable[[], _T]) -> Generator[dg.AssetCheckResult, None, _T]:
        """Do the work that stages files, yield the checks, and return the result of the work. If the work fails, yield
        the checks whose suites ran, and raise.
        """
        try:
            done = work()
        except Exception:
            yield from self._results(self._findings)
            raise
        yield from self._results(self._suites)
        return done

    def _results(self, checks: Iterable[str]) -> Iterator[dg.AssetCheckResult]:
        for check in checks:
            yield from_findings(check, self._findings.get(check, []), self._suites[check].severity)

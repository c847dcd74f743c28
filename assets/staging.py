"""The validation of files before they are committed: when suites of expectations run, and the effect of a failure.

The expectations are in `writetime_dagster.assets.expectations`.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TypeVar

from dagster import AssetCheckResult, AssetCheckSeverity
from pyspark.sql import DataFrame

from writetime.clients import great_expectations
from writetime.clients.great_expectations import Finding, gxe
from writetime.delta.parquet import WrittenFile
from writetime_dagster.assets.checks import from_findings
from writetime_dagster.assets.failures import ToCorrect

_T = TypeVar("_T")


class StagedFiles:
    """Validates staged files with Great Expectations: one suite for each asset check.

    The engine calls it with the files before the commit, as `staged`. If an expectation of a check of severity ERROR is
    not met, it raises `ToCorrect`, and the files are not committed.
    """

    def __init__(
        self,
        checks: Mapping[str, AssetCheckSeverity],
        frame: Callable[[Sequence[WrittenFile]], DataFrame],
        suites: "Callable[[Sequence[WrittenFile]], Mapping[str, list[gxe.Expectation]]]",
        failure: str,
        *,
        count: Callable[[DataFrame], None] | None = None,
        keys: Sequence[str] = (),
        remedies: Mapping[str, str] | None = None,
        lacking: Callable[[], bool] = lambda: False,
    ) -> None:
        """Store the checks, and the functions that validate files.

        Args:
            checks: the severity of each check.
            frame: returns the rows of files.
            suites: returns the expectations of each check.
            failure: the text of the failure.
            count: is called with each frame while Spark keeps it in memory.
            keys: the columns that identify a row in a failure.
            remedies: the remedies of checks that are not about Writetime itself.
            lacking: returns whether there must be rows. If it is false and there are no files, there is nothing to do.
        """
        self._checks = checks
        self._frame = frame
        self._suites = suites
        self._failure = failure
        self._count = count
        self._keys = keys
        self._remedies = remedies or {}
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
            for check, suite in self._suites(files).items():
                found = great_expectations.validate(frame, check, suite, self._keys) if suite else []
                self._findings.setdefault(check, []).extend(found)
            if self._count:
                self._count(frame)
        finally:
            frame.unpersist()
        blocking = [check for check, severity in self._checks.items() if severity is AssetCheckSeverity.ERROR]
        failed = {check: great_expectations.failed(self._findings.get(check, [])) for check in blocking}
        if faults := [fault for fault in failed.values() if fault]:
            remedies = [remedy for check, remedy in self._remedies.items() if failed.get(check)]
            raise ToCorrect(f"{self._failure}: {'; '.join([*faults, *remedies])}")

    def during(self, work: Callable[[], _T]) -> Generator[AssetCheckResult, None, _T]:
        """Do the work that stages files, yield the checks, and return the result of the work. If the work fails, yield
        the checks whose suites ran, and raise.
        """
        try:
            done = work()
        except Exception:
            yield from self._results(self._findings)
            raise
        yield from self._results(self._checks)
        return done

    def _results(self, checks: Mapping[str, object]) -> Iterator[AssetCheckResult]:
        for check in checks:
            yield from_findings(check, self._findings.get(check, []), self._checks[check])

"""Asset checks made from faults, and from findings of Great Expectations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from writetime.clients.great_expectations import Finding, failed, markdown
from writetime.clients.topic_retention import UnknownRetention
from writetime.core.counts import pluralize


def from_faults(
    faults: Sequence[str],
    metadata: Mapping[str, Any],
    *,
    check_name: str | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetCheckResult:
    """Return one check that passes when there are no faults. Its description has them."""
    return dg.AssetCheckResult(
        check_name=check_name,
        passed=not faults,
        severity=severity,
        description="; ".join(faults) or None,
        metadata=metadata,
    )


def from_findings(
    check_name: str, findings: list[Finding], severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
) -> dg.AssetCheckResult:
    """Return one check that passes when all findings pass. It shows the findings as a table."""
    return dg.AssetCheckResult(
        check_name=check_name,
        passed=all(f.success for f in findings),
        severity=severity,
        description=failed(findings) or None,
        metadata={
            "expectations": dg.MetadataValue.md(markdown(findings)),
            "expectations_met": sum(f.success for f in findings),
            "expectations_total": len(findings),
        },
    )


def from_unfit(check_name: str, unfit: Mapping[str, int], written: int, *, whole: bool) -> dg.AssetCheckResult:
    """Return one check that passes when all timestamps that a refresh wrote fit into a view. It shows, per column, the
    number of rows with timestamps that do not fit. `whole`: the refresh wrote all rows of the view.
    """
    of = (
        f"of all {pluralize(written, 'row', ',')}"
        if whole
        else f"of the {pluralize(written, 'row', ',')} that this refresh wrote"
    )
    return from_faults(
        [f"`{column}`: {rows:,} {of} do not fit" for column, rows in unfit.items()],
        {
            "rows_by_column": dg.MetadataValue.json(dict(unfit)),
            "columns": len(unfit),
            "rows_checked": written,
            "all_rows_checked": whole,
        },
        check_name=check_name,
        severity=dg.AssetCheckSeverity.WARN,
    )


def nothing_proven(reason: Exception) -> dg.AssetCheckResult:
    """Return one check that warns that it could not run, with the reason."""
    return from_faults([f"not verified: {reason}"], {"not_proven": str(reason)}, severity=dg.AssetCheckSeverity.WARN)


def from_waiting(waiting: Callable[[], Mapping[int, int]]) -> dg.AssetCheckResult:
    """Return one check that passes when no message waits too long. `waiting` counts the messages that do, and the check
    shows them by partition. If the retention is not known, the check warns that nothing is proven.
    """
    try:
        messages = waiting()
    except UnknownRetention as e:
        return nothing_proven(e)
    return from_faults(
        [f"partition {p}: {pluralize(n, 'message', ',')} waiting for too long" for p, n in messages.items()],
        {
            "messages_waiting_too_long": sum(messages.values()),
            "by_partition": dg.MetadataValue.json({str(p): n for p, n in messages.items()}),
        },
    )

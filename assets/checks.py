"""Turns Great Expectations findings into asset checks. What belongs here: presentation. Not here: expectations."""

from dagster import AssetCheckResult, AssetCheckSeverity, MetadataValue

from writetime.quality import Finding, markdown


def from_findings(
    check_name: str, findings: list[Finding], severity: AssetCheckSeverity = AssetCheckSeverity.ERROR
) -> AssetCheckResult:
    """Return one check that passes when all findings do, with the findings as a table."""
    return AssetCheckResult(
        check_name=check_name,
        passed=all(f.success for f in findings),
        severity=severity,
        metadata={
            "expectations": MetadataValue.md(markdown(findings)),
            "expectations_met": sum(f.success for f in findings),
            "expectations_total": len(findings),
        },
    )

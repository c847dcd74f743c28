"""Great Expectations on data frames: one call that validates a suite and returns the findings in plain rows.

The library takes seconds to import, as long as all other imports of a run. So `gx`, and `gxe` for its expectations, are
imported on first use: programs that validate nothing (the web UI, the daemon, many runs) do not wait for them.
"""

import os
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from writetime.core.extras import WhenUsed

if TYPE_CHECKING:
    import great_expectations as gx
    import great_expectations.expectations as gxe
    import pandas as pd
    from pyspark.sql import DataFrame
else:
    # Read when the library is imported.
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    gx, gxe = WhenUsed("great_expectations"), WhenUsed("great_expectations.expectations")


# The library's context belongs to the process.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Finding:
    """The result of one expectation: the number of unexpected values (None: it counts none), and a few of them."""

    expectation: str
    column: str
    success: bool
    unexpected_count: int | None
    sample: str

    def __str__(self) -> str:
        """The expectation in words, and what does not meet it."""
        what = f"`{self.column.replace('`', '')}` {self.expectation}".removeprefix("`` ")
        count = "" if self.unexpected_count is None else f"{self.unexpected_count:,} rows are not"
        return ": ".join([what, ", such as ".join(part for part in (count, self.sample) if part)]).removesuffix(": ")


def validate(frame: "DataFrame", name: str, expectations: "list[gxe.Expectation]") -> list[Finding]:
    """Validate a frame; one finding per expectation.

    Details are collected only if something is wrong: they more than double the Spark jobs. An expectation that cannot
    be evaluated (a missing column) has failed, with the error as its sample.
    """
    return _validate(_context().data_sources.add_or_update_spark(name, persist=False), frame, name, expectations)


def validate_few(frame: "pd.DataFrame", name: str, expectations: "list[gxe.Expectation]") -> list[Finding]:
    """Validate a frame of pandas, like `validate`. Threads may call it at once."""
    with _one_at_a_time:
        return _validate(_context().data_sources.add_or_update_pandas(name), frame, name, expectations)


def _validate(source: Any, frame: object, name: str, expectations: "list[gxe.Expectation]") -> list[Finding]:
    suite = gx.ExpectationSuite(name=name, expectations=list(expectations))
    batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
    loaded = batch.get_batch({"dataframe": frame})
    result = loaded.validate(suite, result_format="BOOLEAN_ONLY")
    if not result.success:
        result = loaded.validate(suite, result_format="SUMMARY")
    return [_finding(r.to_json_dict()) for r in result.results]


def markdown(findings: list[Finding]) -> str:
    """Return the findings as a Markdown table."""
    met = sum(f.success for f in findings)
    lines = [
        f"{met} of {len(findings)} met",
        "",
        "| expectation | column | met | unexpected | sample |",
        "|---|---|---|---|---|",
    ]
    for f in findings:
        count = "" if f.unexpected_count is None else f.unexpected_count
        lines.append(f"| {f.expectation} | {f.column} | {'yes' if f.success else '**no**'} | {count} | {f.sample} |")
    return "\n".join(lines)


@cache
def _context() -> "gx.data_context.AbstractDataContext":
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


def _finding(result: dict) -> Finding:
    kwargs = result["expectation_config"]["kwargs"]
    columns = kwargs.get("column") or ", ".join(kwargs.get("column_list", []))
    details = result.get("result") or {}
    errors = [
        e.get("exception_message") for e in _exceptions(result.get("exception_info")) if e.get("raised_exception")
    ]
    sample = errors[0] if errors else ", ".join(map(str, details.get("partial_unexpected_list", [])[:3]))
    return Finding(
        expectation=result["expectation_config"]["type"].removeprefix("expect_").replace("_", " "),
        column=columns,
        success=bool(result["success"]),
        unexpected_count=details.get("unexpected_count"),
        sample=str(sample).replace("|", "\\|").replace("\n", " ")[:200],
    )


def _exceptions(info: dict | None) -> list[dict]:
    """Return the exceptions of a result: the library returns one, or one per metric."""
    if not info:
        return []
    return [info] if "raised_exception" in info else [v for v in info.values() if isinstance(v, dict)]

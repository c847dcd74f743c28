"""Great Expectations on data frames: one call validates a suite and returns the findings as plain rows.

The library takes seconds to import, as long as all other imports of a run. So `gx`, and `gxe` for its expectations, are
imported on first use: programs that validate nothing (the web UI, the daemon, many runs) do not wait for them.
"""

import functools
import gc
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from writetime.core.extras import WhenUsed

if TYPE_CHECKING:
    import great_expectations as gx
    import great_expectations.expectations as gxe
    import pandas as pd
    from great_expectations.data_context.types import base
    from pyspark.sql import DataFrame
else:
    # The library reads this when it is imported.
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    gx, gxe = WhenUsed("great_expectations"), WhenUsed("great_expectations.expectations")
    base = WhenUsed("great_expectations.data_context.types.base")


# The number of unexpected values that a finding shows.
_SHOWN = 3
# Arguments that need no name in a sentence; and arguments that the sentence already has or that readers do not need.
_ARGUMENTS = {"value", "value_set", "regex", "type_"}
_NOT_SHOWN = {"batch_id", "column", "column_A", "column_B", "column_list", "min_value", "max_value"}

# A portion with more bytes is freed at once.
_LARGE_BYTES = 1 << 20

# All threads of the process share the library's context.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Finding:
    """The result of one expectation.

    Attributes:
        expectation: the name of the expectation, in words.
        column: its column or columns.
        condition: the expectation with its column and arguments.
        success: whether it is met.
        unexpected_count: the number of rows that do not meet it; None if it counts none.
        rows: the number of rows that it checked; None if it counts none.
        sample: some of the values that do not meet it, each with the key of its row; or the observed value, or the
            error.
        evaluated: whether it could be evaluated; if not, the sample is the error.
    """

    expectation: str
    column: str
    condition: str
    success: bool
    unexpected_count: int | None
    rows: int | None
    sample: str
    evaluated: bool = True

    def __str__(self) -> str:
        """The expectation in words, and the rows that do not meet it."""
        if self.unexpected_count is None:
            return f"{self.condition}: {self.sample}".removesuffix(": ")
        fail = "row fails" if self.rows == 1 else "rows fail"
        found = f"{self.condition}: {self.unexpected_count:,} of {self.rows:,} {fail}"
        return f"{found}, e.g. {self.sample}" if self.sample else found


def failed(findings: Iterable[Finding]) -> str:
    """Describe the expectations that are not met."""
    return "; ".join(str(finding) for finding in findings if not finding.success)


def validate(
    frame: "DataFrame", name: str, expectations: "list[gxe.Expectation]", keys: Sequence[str] = ()
) -> list[Finding]:
    """Validate a frame; one finding per expectation.

    Details are collected only if an expectation is not met, because they more than double the Spark jobs. An
    expectation that cannot be evaluated (a missing column) has failed, with the error as its sample. If rows cannot be
    read, that is not a finding: the error is raised. `name` is that of the check. `keys` are the columns that identify
    a row in a finding.
    """

    def findings() -> list[Finding]:
        suite = gx.ExpectationSuite(name=name, expectations=list(expectations))
        with _batch(lambda sources, own: sources.add_spark(own, persist=False), frame, name) as batch:
            result = batch.validate(suite, result_format="BOOLEAN_ONLY")
            if not result.success:
                result = batch.validate(suite, result_format=_details(keys))
        return [_finding(each.to_json_dict(), keys) for each in result.results]

    found = findings()
    if all(finding.evaluated for finding in found):
        return found
    # The library keeps only the text of an error, also of an outage. This raises the error itself if rows cannot be
    # read.
    frame.write.format("noop").mode("overwrite").save()
    return findings()


def validate_portions(
    frames: "Callable[[], Iterable[pd.DataFrame]]",
    name: str,
    expectations: "list[gxe.Expectation]",
    keys: Sequence[str] = (),
) -> list[Finding]:
    """Validate rows in portions, each a frame of pandas, like `validate`: the findings are those of all rows, and few
    portions are in memory at a time. Threads may call it at once. `frames` returns the portions, and is called again
    for the details if an expectation is not met. If there are several, only expectations on single rows are possible.
    """

    def results(result_format: Any) -> Iterator[list[dict]]:
        for frame in frames():
            found = _of_portion(frame, name, expectations, result_format)
            is_large = frame.memory_usage().sum() > _LARGE_BYTES
            del frame
            if is_large:
                # The library's objects refer to each other, and hold the portion.
                gc.collect()
            yield found

    found: list[dict] = []
    for portion in results("BOOLEAN_ONLY"):
        found = portion
        if not all(result["success"] for result in portion):
            found = functools.reduce(_joined, results(_details(keys)))
            break
    return [_finding(result, keys) for result in found]


def _of_portion(
    frame: "pd.DataFrame", name: str, expectations: "list[gxe.Expectation]", result_format: Any
) -> list[dict]:
    suite = gx.ExpectationSuite(name=name, expectations=list(expectations))
    with _one_at_a_time, _batch(lambda sources, own: sources.add_pandas(own), frame, name) as batch:
        found = batch.validate(suite, result_format=result_format).results
    return [result.to_json_dict() for result in found]


@contextmanager
def _batch(add: Callable[[Any, str], Any], frame: object, name: str) -> Iterator[Any]:
    """Yield a frame as the library's batch. Its data source refers to the frame until it is deleted.

    The source has a name of its own: all validations of a process share the library's context, and one name cannot
    belong to both a source of Spark and a source of pandas.
    """
    sources, own = _context().data_sources, f"{name} {uuid.uuid4().hex}"
    source = add(sources, own)
    try:
        whole = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
        yield whole.get_batch({"dataframe": frame})
    finally:
        sources.delete(own)


def _joined(results: list[dict], others: list[dict]) -> list[dict]:
    """Return the results of expectations on the rows of two portions."""
    return [_both(one, other) for one, other in zip(results, others, strict=True)]


def _both(one: dict, other: dict) -> dict:
    if failed := [each for each in (one, other) if _errors(each)]:
        return failed[0]
    details = [each["result"] for each in (one, other)]
    counts = ("element_count", "unexpected_count")
    joined: dict[str, Any] = {name: sum(each[name] for each in details) for name in counts}
    for name in ("partial_unexpected_list", "partial_unexpected_index_list"):
        joined[name] = [value for each in details for value in each.get(name) or ()][:_SHOWN]
    return {**one, "success": one["success"] and other["success"], "result": joined}


def _details(keys: Sequence[str]) -> dict[str, Any]:
    """Return the format of results with details."""
    # The library does not find columns whose names have dots.
    named = {} if any("." in key for key in keys) or not keys else {"unexpected_index_column_names": list(keys)}
    return {"result_format": "SUMMARY", **named}


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
        count, sample = "" if f.unexpected_count is None else f.unexpected_count, f.sample.replace("|", "\\|")
        lines.append(f"| {f.expectation} | {f.column} | {'yes' if f.success else '**no**'} | {count} | {sample} |")
    return "\n".join(lines)


@cache
def _context() -> "gx.data_context.AbstractDataContext":
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = base.ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


def _finding(result: dict, keys: Sequence[str]) -> Finding:
    kind, kwargs = result["expectation_config"]["type"], result["expectation_config"]["kwargs"]
    pair = [kwargs[name] for name in ("column_A", "column_B") if name in kwargs]
    columns = [kwargs["column"]] if "column" in kwargs else [*kwargs.get("column_list", []), *pair]
    details = result.get("result") or {}
    if errors := _errors(result):
        sample = errors[0]
    elif "observed_value" in details:
        sample = f"it is {_value(details['observed_value'])}"
    else:
        sample = _sample(details, keys)
    return Finding(
        expectation=kind.removeprefix("expect_").replace("_", " "),
        column=", ".join(columns),
        condition=_condition(kind, columns, kwargs),
        success=bool(result["success"]),
        unexpected_count=details.get("unexpected_count"),
        rows=details.get("element_count"),
        sample=" ".join(str(sample).split())[:200],
        evaluated=not errors,
    )


def _errors(result: dict) -> list[str]:
    """Return why an expectation could not be evaluated; nothing if it could."""
    found = _exceptions(result.get("exception_info"))
    return [each.get("exception_message", "") for each in found if each.get("raised_exception")]


def _sample(details: dict, keys: Sequence[str]) -> str:
    """Return some unexpected values, each with the key of its row if that is known."""
    values = details.get("partial_unexpected_list", [])[:_SHOWN]
    places = details.get("partial_unexpected_index_list") or [{}] * len(values)
    found: list[str] = []
    for value, place in zip(values, places, strict=False):
        key = ", ".join(f"{name} {_value(place[name])}" for name in keys if name in place)
        found.append(f"{_value(value)} ({key})" if key else _value(value))
    return ", ".join(found)


def _condition(kind: str, columns: Sequence[str], kwargs: dict) -> str:
    """Return an expectation as words: `total` between 0 and 10."""
    words = kind.removeprefix("expect_").replace("_", " ")
    words = re.sub(r"^(column values|compound columns|column|table) (to )?", "", words)
    words = re.sub(r"\bto (be )?", "", words)
    words = re.sub(r"^(not )?be ", r"\1", words)
    least, most = kwargs.get("min_value"), kwargs.get("max_value")
    if least is not None and most is not None:
        words += f" {_value(least)} and {_value(most)}"
    elif least is not None or most is not None:
        bound = f"at least {_value(least)}" if most is None else f"at most {_value(most)}"
        words = words.replace("between", bound)
    for name, value in kwargs.items():
        if name in _ARGUMENTS:
            words += f" {_value(value)}"
        elif name not in _NOT_SHOWN and value is not None:
            words += f", {name.replace('_', ' ')} {_value(value)}"
    named = ", ".join("`" + column.replace("`", "") + "`" for column in columns)
    return f"{named} {words}".strip()


def _value(value: object) -> str:
    """Return a value as people write it. The library converts numeric arguments to floats."""
    if value is None:
        return "null"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _exceptions(info: dict | None) -> list[dict]:
    """Return the exceptions of a result: the library returns one, or one per metric."""
    if not info:
        return []
    return [info] if "raised_exception" in info else [v for v in info.values() if isinstance(v, dict)]

import gc
import weakref
from collections.abc import Callable, Iterator

import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from writetime.clients.great_expectations import Finding, failed, gxe, markdown, validate, validate_portions

pytestmark = pytest.mark.long

# Great Expectations takes two seconds to import, which each process of the tests would otherwise do when it collects.
Expects = Callable[[], "gxe.Expectation"]


def test_findings_name_the_faults(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 2), (None, 3)], "name string, number int")
    findings = validate(
        frame,
        "people",
        [
            gxe.ExpectColumnValuesToNotBeNull(column="name"),
            gxe.ExpectColumnValuesToBeUnique(column="name"),
            gxe.ExpectTableRowCountToEqual(value=3),
            gxe.ExpectColumnValuesToNotBeNull(column="absent"),
        ],
        ["number"],
    )
    by_name = {(f.expectation, f.column): f for f in findings}
    assert (
        str(by_name["column values to not be null", "name"])
        == "`name` not null: 1 of 3 rows fail, e.g. null (number 3)"
    )
    repeats = by_name["column values to be unique", "name"]
    assert str(repeats) == "`name` unique: 2 of 3 rows fail, e.g. a (number 1), a (number 2)"
    missing = by_name["column values to not be null", "absent"]
    assert "absent" in missing.sample
    assert by_name["table row count to equal", ""].success
    assert [f.success for f in findings].count(False) == 3
    assert markdown(findings).startswith("1 of 4 met")


@pytest.mark.parametrize("first", ["spark", "pandas"])
def test_one_name_is_validated_by_both_engines(spark: SparkSession, first: str) -> None:
    """They share a context: a run of Dagster may check a table's view by Spark, and its new rows by pandas."""
    rows = pd.DataFrame({"id": [1, 2]})
    suite: list[gxe.Expectation] = [gxe.ExpectColumnValuesToBeBetween(column="id", min_value=2)]
    engines = {
        "spark": lambda: validate(spark.createDataFrame([(1,), (2,)], "id long"), "both", suite, ["id"]),
        "pandas": lambda: validate_portions(lambda: [rows], "both", suite, ["id"]),
    }
    second = "pandas" if first == "spark" else "spark"
    found = {failed(engines[engine]()) for engine in (first, second, first)}
    assert found == {"`id` at least 2: 1 of 2 rows fail, e.g. 1 (id 1)"}


def test_rows_that_cannot_be_read_are_not_a_finding(spark: SparkSession) -> None:
    """The library catches every error of its metrics, also that of an outage."""
    frame = spark.range(3).select(F.raise_error(F.lit("the store does not answer")).cast("long").alias("id"))
    with pytest.raises(PySparkException, match="the store does not answer"):
        validate(frame, "ids", [gxe.ExpectColumnValuesToNotBeNull(column="id")])


@pytest.mark.parametrize(
    ("expects", "words"),
    [
        (
            lambda: gxe.ExpectColumnValuesToBeBetween(column="total", min_value=0, max_value=10),
            "`total` between 0 and 10: 2 of 4 rows fail, e.g. 25 (id 7), -3 (id 9)",
        ),
        (
            lambda: gxe.ExpectColumnValuesToBeBetween(column="total", max_value=25, strict_max=True),
            "`total` at most 25, strict max True: 1 of 4 rows fail, e.g. 25 (id 7)",
        ),
        (
            lambda: gxe.ExpectColumnValuesToMatchRegex(column="name", regex="^b"),
            "`name` match regex ^b: 3 of 4 rows fail, e.g. a (id 1), a|c (id 2), a (id 7)",
        ),
        (
            lambda: gxe.ExpectColumnPairValuesAToBeGreaterThanB(column_A="total", column_B="id"),
            "`total`, `id` pair values a greater than b: 2 of 4 rows fail, e.g. [1, 1] (id 1), [-3, 9] (id 9)",
        ),
        (lambda: gxe.ExpectCompoundColumnsToBeUnique(column_list=["id", "name"]), ""),
        (lambda: gxe.ExpectColumnMeanToBeBetween(column="total", min_value=8), "`total` mean at least 8: it is 7"),
        (lambda: gxe.ExpectTableRowCountToEqual(value=3), "row count equal 3: it is 4"),
    ],
)
def test_a_finding_is_a_sentence(expects: Expects, words: str) -> None:
    frame = pd.DataFrame({"id": [1, 2, 7, 9], "total": [1, 5, 25, -3], "name": ["a", "a|c", "a", "b"]})
    assert failed(validate_portions(lambda: [frame], "orders", [expects()], ["id"])) == words


@pytest.mark.parametrize(
    "expects",
    [
        lambda: gxe.ExpectColumnValuesToNotBeNull(column="total"),
        lambda: gxe.ExpectColumnValuesToBeBetween(column="total", min_value=2),
        lambda: gxe.ExpectColumnValuesToBeBetween(column="total", min_value=-9),
        lambda: gxe.ExpectColumnValuesToBeInSet(column="name", value_set=["b"]),
        lambda: gxe.ExpectColumnValuesToBeInSet(
            column="name", value_set=["b"], row_condition="id > 1", condition_parser="pandas"
        ),
        lambda: gxe.ExpectColumnPairValuesAToBeGreaterThanB(column_A="total", column_B="id"),
        lambda: gxe.ExpectMulticolumnSumToEqual(column_list=["id", "total"], sum_total=6),
        lambda: gxe.ExpectColumnValuesToNotBeNull(column="absent"),
    ],
)
@pytest.mark.parametrize("cuts", [[2], [1, 5], [1, 2, 3, 4, 5]])
def test_portions_have_the_findings_of_all_rows(expects: Expects, cuts: list[int]) -> None:
    values = {"id": [1, 2, 7, 9, 10, 11], "total": [1, None, 25, -3, 0, 3], "name": ["a", "b", None, "b", "c", "d"]}
    frame = pd.DataFrame(values)
    parts = [frame.iloc[start:end] for start, end in zip([0, *cuts], [*cuts, 6], strict=True)]
    suite = [expects(), gxe.ExpectColumnValuesToNotBeNull(column="id")]
    one, several = (validate_portions(lambda f=f: f, "orders", suite, ["id"]) for f in ([frame], parts))
    assert several == one


@pytest.mark.parametrize("least", [0, 3])
def test_few_portions_are_in_memory(least: int) -> None:
    """And none after the last one, though a program that follows tables may not validate that table again for long."""
    made: list[weakref.ref[pd.DataFrame]] = []
    held: list[int] = []

    def frames() -> Iterator[pd.DataFrame]:
        for number in range(6):
            held.append(sum(each() is not None for each in made))
            frame = pd.DataFrame({"id": [number] * 200_000})
            made.append(weakref.ref(frame))
            yield frame

    gc.disable()
    try:
        expectation = gxe.ExpectColumnValuesToBeBetween(column="id", min_value=least)
        [finding] = validate_portions(frames, "orders", [expectation])
        held.append(sum(each() is not None for each in made))
    finally:
        gc.enable()
    assert finding.success == (least == 0)
    assert max(held) <= 2
    assert held[-1] == 0


def test_a_table_of_findings_has_its_columns() -> None:
    finding = Finding("column values to match regex", "name", "`name` match regex ^b", False, 1, 4, "a|c")
    assert markdown([finding]).splitlines()[-1] == "| column values to match regex | name | **no** | 1 | a\\|c |"

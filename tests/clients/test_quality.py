from pyspark.sql import SparkSession

from writetime.clients.quality import gxe, markdown, validate


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
    )
    by_name = {(f.expectation, f.column): f for f in findings}
    nulls = by_name["column values to not be null", "name"]
    repeats = by_name["column values to be unique", "name"]
    missing = by_name["column values to not be null", "absent"]
    assert [nulls.success, repeats.success, missing.success] == [False, False, False]
    assert by_name["table row count to equal", ""].success
    assert nulls.unexpected_count == 1
    assert "a" in repeats.sample
    assert "absent" in missing.sample
    assert markdown(findings).startswith("1 of 4 met")

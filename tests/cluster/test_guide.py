"""The guide: its settings are valid, and its table is the result of the simulation."""

import re
from pathlib import Path

import pytest

from bench.sizing import LOADS, Costs, Load, freshness, table
from writetime.clients.spark import spark_conf
from writetime.core import config

DOCS = Path(__file__).parents[2] / "docs"


def test_the_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = re.search(r"```toml\n(.*?)```", (DOCS / "cluster.md").read_text(), re.DOTALL)
    assert text is not None
    (tmp_path / "writetime.toml").write_text(text[1])
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    monkeypatch.setenv("WRITETIME_CASSANDRA__PASSWORD", "secret")
    monkeypatch.setenv("WRITETIME_CAPTURE__NODE", "10.0.0.11")
    monkeypatch.setenv("WRITETIME_CASSANDRA__CONTACT_POINTS", '["10.0.0.11"]')
    # The environment that the configuration sets for Spark.
    for name in ("PYSPARK_PYTHON", "JAVA_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    settings = config.load()
    assert settings.cassandra.contact_points == ["10.0.0.11"]
    conf = spark_conf(settings)
    assert conf["spark.master"] == "spark://spark-master:7077"
    assert conf["spark.driver.host"] == "10.0.0.31"


def test_the_table_of_sizes_is_that_of_the_simulation() -> None:
    assert table(LOADS, Costs()) in (DOCS / "cluster.md").read_text()


@pytest.mark.parametrize(
    "figure",
    [
        "| events per CPU second, start included | 54,795 ",
        "| Writetime, to a consumer in Kafka | 35 ms |",
        "| the fold in Spark's tasks | 8.9 |",
        "run at 431,082",
    ],
)
def test_costs_are_those_that_were_measured(figure: str) -> None:
    assert figure in (DOCS / "benchmarks.md").read_text()


def test_more_landings_are_fresher() -> None:
    load = Load(10_000, 40, 6)
    one, four = (freshness(load, landings, Costs()).mean() for landings in (1, 4))
    assert four < one / 2
    # A table alone waits for no other: for its turn, which comes ten times a second, and for its commit.
    assert 0.2 < freshness(Load(10, 1, 3), 1, Costs()).mean() < 1.5

import pytest

from demo.__main__ import _start_of


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "making keyspaces, tables and topics"),
        (["kafka"], "starting Kafka"),
        (["zookeeper", "kafka", "cassandra"], "starting Cassandra, Kafka and ZooKeeper"),
    ],
)
def test_the_first_step_names_the_servers_that_it_starts(names: list[str], text: str) -> None:
    assert _start_of(names) == text

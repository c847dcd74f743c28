"""The files of properties that Kafka and ZooKeeper read, as Java reads them."""

import subprocess
from pathlib import Path

import pytest

from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.runtime import jars
from writetime.runtime.java import java
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import java_environment
from writetime.servers.properties import properties_text

pytestmark = pytest.mark.slow

VALUES = ["/home/Zoë/größe ☃ \U0001d11e", "C:\\new\\u0041", " spaces ", "a=b:c#d!e", "lines\nand\ttabs", "", 7]
PROGRAM = """
import java.io.*;
import java.nio.file.*;
public class Read {
    public static void main(String[] names) throws Exception {
        var read = new java.util.Properties();
        try (var file = new FileInputStream(names[0])) { read.load(file); }
        for (int i = 0; i < read.size(); i++)
            Files.write(Path.of(names[1] + i), read.getProperty("key." + i).getBytes("UTF-8"));
    }
}
"""


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_java_reads_what_was_written(tmp_path: Path, locale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    folder = tmp_path / "größe ☃"
    folder.mkdir()
    (folder / "Read.java").write_text(PROGRAM)
    (folder / "file").write_text(properties_text({f"key.{i}": value for i, value in enumerate(VALUES)}), "ascii")
    compiler = next(p for p in jars.fetch("cassandra") if "ecj" in p.name)
    environment = java_environment()
    for command in (
        [java(), "-jar", compiler, "-17", "-nowarn", "-d", folder, folder / "Read.java"],
        [java(), "-cp", folder, "Read", folder / "file", folder / "value"],
    ):
        subprocess.run(command, env=environment, check=True)
    assert [(folder / f"value{i}").read_text("utf-8") for i in range(len(VALUES))] == [str(v) for v in VALUES]


def test_a_folder_that_kafka_takes_as_two_is_refused(tmp_path: Path) -> None:
    settings = config.load(embedded={"home": tmp_path / "a,b"})
    with pytest.raises(WritetimeError, match=r"embedded\.home: .*a,b/kafka.* without commas"):
        KafkaServer(settings)

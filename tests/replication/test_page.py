"""The steps of docs/replication.md, with the settings and commands of its text: a table moves between two clusters.

Oracle: the answers of both clusters.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from cassandra.cluster import NoHostAvailable

from tests.replication.conftest import Clusters, Target
from tests.support.captured import REPLICATION, Captured, captured_keyspace
from tests.support.commands import run
from tests.support.documents import ROOT, blocks
from tests.support.format_server import FormatServer
from tests.support.programs import Program
from tests.support.published import command as status_of
from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.core.config import Settings, TableEntry
from writetime.replication.replicated_part import ReplicatedPart
from writetime.schema.cql import parse_table

pytestmark = pytest.mark.long

_PAGE = "docs/replication.md"
_COMMAND = re.compile(r"(?m)`writetime ([^`]+)`|^writetime (.+?) *(?:#.*)?$")
_TABLE = "shop.orders"


def commands(section: str) -> list[str]:
    """The commands of a section, in its text and its blocks, in order."""
    text = (ROOT / _PAGE).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    assert text, section
    return [" ".join((span or line).split()) for span, line in _COMMAND.findall(text)]


@dataclass(frozen=True)
class Installation:
    """A captured table in the old cluster, and the settings of the page for it and the new one, in a folder."""

    captured: Captured
    new: FormatServer
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.captured.keyspace}.orders"

    def run(self, command: str) -> str:
        return run(*command.replace(_TABLE, self.name).split())

    def is_up_to_date(self, command: str) -> bool:
        """Whether a status, which also reports that the embedded servers do not run, has a replication that is not
        behind.
        """
        output = status_of(*command.split()).output
        of_table = re.split(r"\n  \S", output.rpartition(f"\n  {self.name}: ")[2])[0]
        found = re.search(r"(?m)^ +replication: ([\d,]+) rows.*$", of_table)
        return found is not None and "behind" not in found[0]

    def write(self, first: int, last: int) -> None:
        self.captured.write(
            *(
                f"INSERT INTO {{ks}}.orders (id, item, tags) VALUES ({n}, 'i{n}', {{'a': {n}}})"
                for n in range(first, last)
            )
        )

    def is_replicated(self, count: int) -> bool:
        session = self.new.session()
        tables = session.execute(
            f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{self.captured.keyspace}'"
        )
        # A node names a new table a moment before it can read it.
        with suppress(NoHostAvailable):
            return bool(list(tables)) and len(list(session.execute(f"SELECT id FROM {self.name}"))) == count
        return False

    def written(self, setting: str) -> None:
        """Write a part of the page into the settings, with the addresses that the nodes have here."""
        for pattern, here in (
            (r'"10\.0\.1\.1", "10\.0\.1\.2"', '"127.0.0.1"'),
            (r"port = 9042", f"port = {self.new.port}"),
            (r'"dc1"', '"datacenter1"'),
            (re.escape(_TABLE), self.name),
        ):
            setting, count = re.subn(pattern, here, setting)
            assert count, f"{_PAGE} has no {pattern}"
        with (self.folder / "writetime.toml").open("a") as file:
            file.write(setting)


@pytest.fixture
def installation(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    old = FormatServer(tmp_path / "old", "nb", commitlog_sync="batch", commitlog_segment_size="1MiB")
    new = Target(tmp_path / "new", "nb")
    try:
        for node in (old, new):
            node.start()
        with captured_keyspace(old, kafka, tmp_path) as captured:
            captured.write(
                "CREATE TABLE {ks}.orders (id int PRIMARY KEY, item text, tags map<text, int>) WITH cdc = true"
            )
            lake = captured.settings.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 2})
            write_settings(captured.settings.model_copy(update={"lake": lake}), tmp_path / "writetime.toml")
            monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
            monkeypatch.chdir(tmp_path)
            yield Installation(captured, new, tmp_path)
    finally:
        for node in (old, new):
            node.stop()


def test_the_page(installation: Installation) -> None:
    here, new = installation, installation.new
    [settings, *_] = [block.text for block in blocks(_PAGE) if block.language == "toml"]
    here.written(settings)
    follow, status, replicate = commands("Replicate")
    agent, following = (Program(here.folder, name, name) for name in ("agent", follow))
    here.write(0, 50)
    try:
        agent.start()
        new.write_one(f"CREATE KEYSPACE {here.captured.keyspace} WITH replication = {REPLICATION}")
        following.start()
        here.captured.write("ALTER TABLE {ks}.orders ADD note text")
        here.write(50, 100)
        wait_for(lambda: here.is_replicated(100))
        wait_for(lambda: here.is_up_to_date(status))
        move(here)
    finally:
        for program in (agent, following):
            program.end()
    here.run(replicate)


def move(here: Installation) -> None:
    """Do the steps of the section `Move`, after which clients use the new cluster."""
    status, cutover, verify = commands("Move")
    here.captured.write("ALTER TABLE {ks}.orders WITH default_time_to_live = 1000000")
    here.captured.write("CREATE INDEX items ON {ks}.orders (item)")
    here.write(50, 150)
    wait_for(lambda: here.is_replicated(150) and here.is_up_to_date(status))
    answer = here.run(cutover)
    option = "default_time_to_live = 1000000"
    left = f"default_time_to_live is 0 in new, and was 1000000: ALTER TABLE {here.name} WITH {option}"
    missing = "new lacks the index items (item)"
    assert f"left to do: {left}\nleft to do: {missing}\n" in answer
    report = json.loads(Path(cutover.split()[-1].replace(_TABLE, here.name)).read_text())
    assert (report["equal"], report["database_rows"], report["against_rows"]) == (True, 150, 150)
    assert report["left_to_do"] == [left, missing]
    Clusters(here.captured.node, here.new).assert_same(here.captured.schema("orders"))
    here.run(verify)


def test_settings_of_a_part() -> None:
    [part] = [tomllib.loads(block.text) for block in blocks(_PAGE) if "replicate_where" in block.text]
    entry = TableEntry.model_validate(part["tables"]["shop"]["orders"])
    schema = parse_table(
        f"CREATE TABLE {_TABLE} (customer int, id int, email text, address text, PRIMARY KEY (customer, id))"
    )
    ReplicatedPart.of_entry(entry).require_fit(schema)

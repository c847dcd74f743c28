"""The streams of a table, by the answers of nodes that may be behind; no server is needed."""

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from cassandra import InvalidRequest

from writetime.core.config import ScyllaCdc
from writetime.core.errors import Transient
from writetime.scylla_cdc import source
from writetime.scylla_cdc.log import LogError, StaleSets
from writetime.scylla_cdc.pages import Pages
from writetime.scylla_cdc.streams import StreamSets

_GENERATION, _FIRST_SET = 1_700_000_000_000_000, 1_800_000_000_000_000
_KEYSPACES = "system_schema.scylla_keyspaces"
_SETTINGS = ScyllaCdc()


def _times(*micros: int) -> list[bytes | None]:
    return [struct.pack(">q", time // 1000) for time in micros]


class _Answers:
    """Answers queries for one column each, and refuses those for other tables and columns."""

    def __init__(self, **answers: Sequence[bytes | None]) -> None:
        tables = {
            "timestamp": _SETTINGS.tablet_times,
            "time": _SETTINGS.generation_times,
            "initial_tablets": _KEYSPACES,
        }
        self._answers = {(column, tables[column]): values for column, values in answers.items()}

    def prepare(self, query: str, consistency: int | None = None) -> tuple[str, str]:
        del consistency
        found = re.match(r"SELECT (\w+) FROM (\S+)", query)
        assert found is not None
        asked = found[1], found[2].replace('"', "")
        if asked not in self._answers:
            raise InvalidRequest(f"unconfigured table {asked}")
        return asked

    def rows(self, asked: tuple[str, str], values: Sequence[Any]) -> pa.Table:
        del values
        return pa.table({asked[0]: pa.array(self._answers[asked], pa.binary())})


def _sets(**answers: Sequence[bytes | None]) -> StreamSets:
    return StreamSets(cast(Pages, _Answers(**answers)), _SETTINGS, "ks", "t")


# A keyspace with vnodes has no row, or one without a number; older versions have no such column, others no such table.
@pytest.mark.parametrize("of_vnodes", [{"initial_tablets": []}, {"initial_tablets": [None]}, {}])
@pytest.mark.parametrize("of_tablets", [{"timestamp": []}, {}])
def test_a_keyspace_with_vnodes_has_the_generations(of_vnodes: Any, of_tablets: Any) -> None:
    assert _sets(**of_tablets, **of_vnodes, time=_times(_GENERATION)).times == [_GENERATION]
    with pytest.raises(LogError, match=r"no CDC streams for ks\.t") as raised:
        _sets(**of_tablets, **of_vnodes, time=[])
    assert not isinstance(raised.value, Transient)


# By default the number is 0.
@pytest.mark.parametrize("number", [0, 8])
def test_a_table_with_tablets_never_has_the_generations(number: int) -> None:
    """A node that does not know the table's own streams is behind. In a cluster with both, generations answer, too."""
    of_tablets = {"initial_tablets": [struct.pack(">i", number)]}
    with pytest.raises(StaleSets, match=r"whose keyspace has tablets: it is behind.*restart it"):
        _sets(timestamp=[], time=_times(_GENERATION), **of_tablets)
    assert _sets(timestamp=_times(_FIRST_SET), time=_times(_GENERATION), **of_tablets).times == [_FIRST_SET]


def test_a_node_that_is_behind_is_queried_again_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    @contextmanager
    def connected(*_: object) -> Iterator[tuple[None, None]]:
        yield None, None

    def behind_until(attempt: int) -> Any:
        def made(*_: object) -> SimpleNamespace:
            asked.append(attempt)
            if len(asked) < attempt:
                raise StaleSets("the node is behind")
            return SimpleNamespace()

        return made

    monkeypatch.setattr(source, "connect_for_pages", connected)
    monkeypatch.setattr(source, "STALE_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(source, "CdcSource", behind_until(4))
    with source.open_source(cast(Any, None), "ks.t"):
        assert len(asked) == 4
    monkeypatch.setattr(source, "STALE_SECONDS", 0.1)
    monkeypatch.setattr(source, "CdcSource", behind_until(10_000))
    with pytest.raises(StaleSets), source.open_source(cast(Any, None), "ks.t"):
        pass

"""The errors if a package is not installed, and the code that works without it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from writetime.cli.main import main
from writetime.core import extras
from writetime.core.errors import WritetimeError
from writetime.ingest import event_sink
from writetime.runtime import jars
from writetime.runtime.nodetool import nodetool


def missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named '{name}'", name=name)


def test_the_remedy_for_a_module_of_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    # Installed, so only a part of it is missing: no extra would help.
    assert extras.remedy(missing("duckdb.nothing")) is None
    assert extras.remedy(missing("nothing")) is None
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "duckdb")
    assert extras.remedy(missing("duckdb.nothing")) == 'this needs writetime[lake]: pip install "writetime[lake]"'


def test_a_module_is_imported_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used = extras.WhenUsed("duckdb")
    assert callable(used.connect)
    monkeypatch.setattr(extras, "is_installed", lambda module: False)
    with pytest.raises(ModuleNotFoundError, match="this needs writetime"):
        used.connect()
    # Tools that inspect a module, such as pytest and doctest, request private names.
    assert not hasattr(used, "__wrapped__")


def test_a_command_keeps_the_traceback_of_another_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise missing("nothing")

    monkeypatch.setattr(event_sink, "run", run)
    assert isinstance(CliRunner().invoke(main, ["sink"]).exception, ModuleNotFoundError)


def test_landing_ends_at_once_where_the_lake_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "deltalake")
    refused = CliRunner().invoke(main, ["follow"])
    assert refused.exit_code == 1
    assert refused.output == 'Error: this needs writetime[lake]: pip install "writetime[lake]"\n'


@pytest.fixture
def own_nodetool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nodetool"


def test_the_nodetool_of_the_node_runs(own_nodetool: Path, tmp_path: Path) -> None:
    own_nodetool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n')
    own_nodetool.chmod(0o755)
    nodetool(7199, "snapshot", "-t", "tag", "-kt", "shop.orders")
    assert (tmp_path / "arguments").read_text() == "-h 127.0.0.1 -p 7199 snapshot -t tag -kt shop.orders\n"
    own_nodetool.write_text("#!/bin/sh\necho 'error: no such table' >&2\nexit 2\n")
    with pytest.raises(WritetimeError, match="nodetool snapshot failed: error: no such table"):
        nodetool(7199, "snapshot")


def test_a_nodetool_that_does_not_end_is_an_error(own_nodetool: Path) -> None:
    own_nodetool.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    own_nodetool.chmod(0o755)
    with pytest.raises(WritetimeError, match=r"nodetool snapshot -t tag did not end in 0\.1 s: .* JMX port 7199"):
        nodetool(7199, "snapshot", "-t", "tag", timeout_seconds=0.1)


@pytest.mark.usefixtures("own_nodetool")
def test_without_any_nodetool_the_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "has_ivy", lambda: False)
    with pytest.raises(WritetimeError, match=r"on the PATH; otherwise, this needs writetime\[embedded\]"):
        nodetool(7199, "snapshot")

"""What a Python worker of Spark prints when it ends."""

import inspect
import sys
import traceback

import pytest
from pyspark import daemon

from writetime.sources.worker_end import end_quietly


def test_a_connection_that_spark_closed_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As at the end of `manager`, in a worker that the daemon has forked."""
    assert "traceback.print_exc()" in inspect.getsource(daemon.manager)
    monkeypatch.setattr(daemon, "traceback", traceback)
    end_quietly()
    assert vars(daemon)["traceback"] is traceback
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    end_quietly()
    printed = {}
    for error in (BrokenPipeError(), ConnectionResetError(), ValueError("a bug")):
        try:
            raise error
        except Exception:
            vars(daemon)["traceback"].print_exc()
        printed[type(error)] = capsys.readouterr().err
    assert printed.pop(ValueError).endswith("ValueError: a bug\n")
    assert set(printed.values()) == {""}

"""The output of a Python worker of Spark at its end."""

import inspect
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from pyspark import daemon

from tests.support import oracle
from writetime.sources.worker_end import end_quietly

pytestmark = pytest.mark.long

# Spark's Java process and its workers have the error output of the program that starts them.
SHOW = """
import sys
import writetime
from writetime.clients.spark import spark_conf, start_session
from writetime.core import config

spark = start_session(spark_conf(config.load(spark={"master": "local[1]"})))
writetime.register(spark)
spark.read.format("sstable").load(sys.argv[1]).show(3)
"""


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


def test_show_prints_no_traceback(tmp_path: Path) -> None:
    """Spark needs three rows, and the worker has more than the connection's buffers hold before Spark closes it."""
    folder = tmp_path / "bench" / "events"
    folder.mkdir(parents=True)
    subprocess.run(oracle.java_command("Oracle", "write", folder, "100000"), check=True, capture_output=True)
    command = [sys.executable, "-c", SHOW, str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "only showing top 3 rows" in done.stdout
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr

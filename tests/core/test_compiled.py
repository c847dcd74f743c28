"""Compiled functions, if no folder can keep their code."""

import os
import subprocess
import sys

import pytest

from tests.support import read_only

pytestmark = pytest.mark.slow

CODE = """
import logging; logging.basicConfig()
import writetime.storage.kernel.frames
import pyarrow as pa
from writetime.schema.avro import encode
print(encode(pa.array([1, -1, 300]), "long").to_pylist())
"""


@pytest.mark.skipif(not read_only.is_possible(), reason="needs Landlock, of Linux 6.2")
def test_functions_are_compiled_where_no_folder_can_be_written() -> None:
    wrapper = [sys.executable, "-m", "tests.support.read_only", "--"]
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    command = [*wrapper, sys.executable, "-c", CODE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([b"\x02", b"\x01", b"\xd8\x04"])
    (warning,) = done.stderr.splitlines()
    assert "NUMBA_CACHE_DIR" in warning

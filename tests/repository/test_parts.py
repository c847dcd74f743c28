import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.parts import PARTS, of_other_parts

pytestmark = pytest.mark.slow

# As a call of native code hangs, which sees no signal.
HANGS = """
import signal, time

def test_before(): pass

def test_that_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(1000)

def test_after(): pass
"""


@pytest.mark.parametrize("count", [0, 1, 2, 7, 84])
def test_each_long_module_is_in_one_part(count: int) -> None:
    modules = [f"tests/{folder}/test_{number}.py" for number in range(count) for folder in "ab"]
    others = [of_other_parts(modules * 2, 0x3D691F80 + part) for part in range(PARTS)]
    assert all(sum(module not in other for other in others) == 1 for module in modules)
    sizes = [len(modules) - len(other) for other in others]
    assert max(sizes) - min(sizes) <= 1


def test_a_test_that_hangs_fails_once(tmp_path: Path) -> None:
    """Its process ends, prints what it did, and another one runs the tests after it."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler\n")
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "test_it.py").write_text(HANGS)
    options = "-n 1 --dist loadscope --timeout 2 -o faulthandler_timeout=4 -o faulthandler_exit_on_timeout=true"
    command = [sys.executable, "-m", "pytest", *options.split(), "-p", "no:cacheprovider"]
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, check=False)
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "in test_that_hangs" in done.stderr

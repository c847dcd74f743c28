import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_platform_is_no_package() -> None:
    """With an `__init__.py` the folder would shadow the standard library's `platform` and break `dagster dev`."""
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_engine_never_imports_dagster() -> None:
    for path in (ROOT / "platform" / "writetime").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) dagster", path.read_text(), re.MULTILINE), path


def test_ci_runs_the_tests_and_nothing_else() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]

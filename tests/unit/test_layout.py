"""What is where: tools and users find these by their places."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name",
    ["pyproject.toml", "workspace.yaml", "dagster.yaml", "platform", "assets", "resources", "cql", "tests"],
)
def test_the_top_level(name: str) -> None:
    assert (ROOT / name).exists()


def test_platform_is_no_package() -> None:
    # It would shadow the standard library's module of that name.
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_every_module_has_a_room() -> None:
    loose = {path.name for path in (ROOT / "platform" / "writetime").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py"}

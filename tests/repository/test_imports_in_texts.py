"""Programs in documents and in strings of tests, which no type checker reads: the names they import exist."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"^[ >]*(?:from|import) (?:writetime|bench|demo|tools)\b", re.M)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def programs() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each program that imports from this project."""
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        for block in BLOCK.findall(path.read_text()):
            if OURS.search(block):
                yield str(path.relative_to(ROOT)), block
    for folder in ("tests", "bench", "tools", "demo"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__) and "import " in (text := path.read_text()):
                for node in ast.walk(ast.parse(text)):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str) and OURS.search(node.value):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def statements(program: str) -> list[ast.stmt]:
    """Return a program's statements, or its imports if the text has places for values and is not Python as it is."""
    try:
        return ast.parse(program).body
    except SyntaxError:
        return ast.parse("\n".join(line for line in program.splitlines() if OURS.match(line))).body


def missing(program: str) -> list[str]:
    """Return the names that a program imports from this project, or uses of a module of it, and that do not exist."""
    found: list[str] = []
    modules: dict[str, ModuleType] = {}
    for node in (node for statement in statements(program) for node in ast.walk(statement)):
        if isinstance(node, ast.ImportFrom) and OURS.match(f"from {node.module}"):
            for name in node.names:
                try:
                    value = _imported(str(node.module), name.name)
                except ModuleNotFoundError:
                    found.append(f"{node.module}.{name.name}")
                    continue
                if isinstance(value, ModuleType):
                    modules[name.asname or name.name] = value
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found += [f"{node.value.id}.{node.attr}"] * (not hasattr(modules[node.value.id], node.attr))
    return found


def _imported(module: str, name: str) -> object:
    owner = importlib.import_module(module)
    return getattr(owner, name) if hasattr(owner, name) else importlib.import_module(f"{module}.{name}")


def test_programs_of_documents_and_of_tests_are_found() -> None:
    assert {"docs", "tests"} <= {place.partition("/")[0] for place, _ in programs()}


@pytest.mark.parametrize(("place", "program"), programs(), ids=lambda value: value if "\n" not in value else "")
def test_imported_names_exist(place: str, program: str) -> None:
    assert not missing(program), place


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("from writetime.core import config\nconfig.load()", []),
        ("from writetime.core.config import Nothing", ["writetime.core.config.Nothing"]),
        ("from writetime.nothing import Thing", ["writetime.nothing.Thing"]),
        ("from writetime.core import config as c\nc.gone()", ["c.gone"]),
        ("{value}!\nfrom writetime.core import gone\n", ["writetime.core.gone"]),
    ],
)
def test_a_name_that_does_not_exist_is_found(program: str, expected: list[str]) -> None:
    assert missing(program) == expected

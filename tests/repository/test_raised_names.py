"""Docstrings name errors that exist."""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("platform/writetime", "assets", "resources", "demo")
RAISED = re.compile(r"^ *([A-Z]\w*(?:, [A-Z]\w*)*):(?: |$)")
# In a sentence: "Raises NoTopic: there is none; Transient: no broker answers." or "Raises `NoTopic` if there is none."
IN_SENTENCE = re.compile(r"(?:\bRaises |; )`?([A-Z]\w*)`?(?::| if) ")


def modules() -> dict[Path, ast.Module]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {path: ast.parse(path.read_text()) for path in paths}


def raised(tree: ast.AST) -> Iterator[str]:
    """Yield the names of errors in docstrings, below `Raises:` or in a sentence."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text, _, section = (ast.get_docstring(node) or "").partition("Raises:\n")
            _, verb, sentence = " ".join(text.split()).partition("Raises ")
            yield from IN_SENTENCE.findall(verb + sentence)
            for line in section.partition("\n\n")[0].splitlines():
                if match := RAISED.match(line):
                    yield from match[1].split(", ")


def names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that the code of a module uses or defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.asname or node.name


def unknown(trees: dict[Path, ast.Module]) -> list[str]:
    known = {*vars(builtins), *(name for tree in trees.values() for name in names(tree))}
    return [f"{path.name}: {name}" for path, tree in trees.items() for name in raised(tree) if name not in known]


def test_errors_in_docstrings_exist() -> None:
    found = modules()
    assert sum(1 for tree in found.values() for _ in raised(tree)) > 300
    assert unknown(found) == []


@pytest.mark.parametrize("text", ["Gone: it is gone.", "ValueError, Gone: both.", "OSError: no.\n    Gone: yes."])
def test_an_error_that_does_not_exist_is_found(text: str) -> None:
    tree = ast.parse(f'def f():\n    """Do it.\n\n    Raises:\n    {text}\n    """\n')
    assert unknown({Path("m.py"): tree}) == ["m.py: Gone"]

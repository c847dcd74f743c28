"""The places of files, on which tools and users rely."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Import = ast.Import | ast.ImportFrom
# A private constant of a module that is patched, or assigned to.
PATCHED = re.compile(
    r"\b(?:setattr|setitem|object|patch)\([^()]*[\".](_[A-Z][A-Z0-9_]*)\b|\w\.(_[A-Z][A-Z0-9_]*)(?:, [\w.]+)* = "
)


@cache
def found_in(path: Path) -> tuple[list[Import], list[tuple[str, int]]]:
    """Return the imports of a module, wherever they are, and its functions with their numbers of lines."""
    imports: list[Import] = []
    functions: list[tuple[str, int]] = []
    for node in statements(ast.parse(path.read_text()).body):
        if isinstance(node, Import):
            imports.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
    return imports, functions


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and all that are inside of them; no expressions, which are most of a module."""
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            inside = getattr(node, part, None)
            yield from statements(inside if isinstance(inside, list) else [])


@pytest.mark.parametrize(
    "name",
    ["pyproject.toml", "workspace.yaml", "dagster.yaml", "platform", "assets", "resources", "cql", "tests"],
)
def test_the_top_level(name: str) -> None:
    assert (ROOT / name).exists()


def test_platform_is_not_a_package() -> None:
    # It would shadow the standard library's module of that name.
    assert not (ROOT / "platform" / "__init__.py").exists()


@pytest.mark.parametrize("name", ["assets", "resources"])
def test_folders_of_dagster_are_parts_of_one_package(name: str) -> None:
    linked = ROOT / "platform" / "writetime_dagster" / name
    assert linked.is_symlink()
    # Relative, so that every clone has it.
    assert linked.readlink() == Path("../..") / name
    assert linked.samefile(ROOT / name)


def test_no_module_has_two_names() -> None:
    # `assets` is found at the top of the repository, too, and its modules would be loaded a second time.
    names = set()
    for folder in ("platform/writetime", "assets", "resources", "demo", "tests", "bench", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in found_in(path)[0]:
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif not node.level:
                    names.add((node.module or "").partition(".")[0])
    assert "writetime_dagster" in names
    assert names.isdisjoint({"assets", "resources"})


def test_one_module_uses_private_parts_of_dagster() -> None:
    """Other releases of Dagster may lack them. That module says what happens then."""
    users = set()
    for folder in ("platform/writetime", "platform/writetime_dagster", "assets", "resources", "demo"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in found_in(path)[0]:
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                if any(re.match(r"dagster\w*\._|dagster_shared\b", module) for module in modules):
                    users.add(str(path.relative_to(ROOT)))
    assert users == {"resources/private_dagster.py"}


def test_the_changelog_begins_with_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0] == f"## {version}"


def test_every_module_is_in_a_package() -> None:
    loose = {path.name for path in (ROOT / "platform" / "writetime").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py"}


def test_no_two_modules_have_a_class_of_one_name() -> None:
    """But for `Batch`, which users import from `writetime.replay`, and `Table`, from `writetime`."""
    engine, named = ROOT / "platform" / "writetime", dict[str, set[Path]]()
    for path in engine.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, set()).add(path.relative_to(engine))
    assert len(named) > 100
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


def imports_of_tests() -> Iterator[tuple[Path, list[str]]]:
    """Yield each import of a module of tests: the importing file, and the parts of the module's name."""
    for folder in ("tests", "bench", "demo", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in found_in(path)[0]:
                if isinstance(node, ast.ImportFrom):
                    assert not node.level, f"{path}, line {node.lineno}: an import by the full name was expected"
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                else:
                    names = [alias.name for alias in node.names]
                for name in names:
                    if name.startswith("tests."):
                        yield path.relative_to(ROOT), name.split(".")


def test_no_module_imports_from_a_test_module() -> None:
    for path, parts in imports_of_tests():
        assert not any(part.startswith("test_") for part in parts[:-1]), f"{path} imports {'.'.join(parts)}"
        is_module = (ROOT / Path(*parts).with_suffix(".py")).exists()
        assert not (is_module and parts[-1].startswith("test_")), f"{path} imports {'.'.join(parts)}"


def test_helpers_of_several_folders_are_in_support() -> None:
    imports = list(imports_of_tests())
    assert imports
    for path, parts in imports:
        own = path.parts[1] if path.parts[0] == "tests" and len(path.parts) > 2 else "support"
        assert parts[1] in (own, "support"), f"{path} imports {'.'.join(parts)}: move it to tests/support"


def test_no_test_is_longer_than_40_lines() -> None:
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    assert paths
    for path in paths:
        for name, lines in found_in(path)[1]:
            assert lines <= 40 or not name.startswith("test_"), (
                f"{path.relative_to(ROOT)}: {name} has {lines} lines; split it, or name its steps"
            )


def makes_inputs(module: ast.Module) -> bool:
    """Return whether a module's tests try generated inputs: with hypothesis, a seed or a number of rounds."""
    names = {"given", "rounds", "examples", "some", "SEED"}
    for node in statements(module.body):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("hypothesis", "tests.support")):
            if names & {alias.name for alias in node.names}:
                return True
        elif isinstance(node, ast.Assign) and "SEED" in map(ast.unparse, node.targets):
            return True
    return False


def test_tests_of_generated_inputs_state_their_oracle() -> None:
    """So that a reader knows whether they compare with the database, or with another path of our own code."""
    found = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    asked = {path: module for path, module in found.items() if makes_inputs(module)}
    assert len(asked) > 50
    for path, module in asked.items():
        assert "\nOracle: " in (ast.get_docstring(module) or ""), (
            f"{path.relative_to(ROOT)}: its docstring has no line `Oracle: ...`, although its inputs are generated"
        )


@pytest.mark.parametrize(
    "text", ['patch.setattr(a, "_B", 1)', 'patch("a.b._C", 1)', "setitem(a._B, c, 1)", "a._B, a.c = 1, 2"]
)
def test_a_private_constant_that_is_patched_is_found(text: str) -> None:
    assert PATCHED.search(text)


def test_no_test_patches_a_private_constant() -> None:
    """It is an argument with a default, or a public name with a docstring."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        found = None if path == Path(__file__) else PATCHED.search(path.read_text())
        assert found is None, f"{path.relative_to(ROOT)} patches {found[1] or found[2]}"

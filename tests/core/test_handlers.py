"""A handler that cannot be loaded is refused in one line, which names it and the place of the fault."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from writetime.core.errors import WritetimeError
from writetime.core.handlers import load_handler

# The text of a module, and the line at fault; None if the remedy is another name.
BROKEN: dict[str, tuple[str, int | None]] = {
    "syntax": ("x = 1\ndef handle(item)\n    pass\n", 2),
    "indentation": ("def handle(item):\n    a = 1\n  b = 2\n", 3),
    "tabs": ("def handle(item):\n        a = 1\n\tb = 2\n", 3),
    "encoding": ("x = 1\ny = '\udcff'\n", 2),
    "a null": ("x = 1\n\0", None),
    "any exception": ("\n\nraise RuntimeError('no configuration')\n", 3),
    "a setting": ("import os\nURL = os.environ['NO_SUCH_SETTING']\n", 2),
    "a library": ("import json\nJSON = json.loads('{')\n", 2),
    "a missing module": ("import no_such_module\n", 1),
    "a missing name": ("from json import no_such_name\n", 1),
    "a missing part": ("import json.no_such_part\n", 1),
    "a missing file": ("open('/no/such/file')\n", 1),
    "an assertion": ("assert False\n", 1),
    "endless recursion": ("def f(): f()\nf()\n", 1),
    "no exception": ("class Stop(BaseException): pass\nraise Stop\n", 2),
    "a cancelled task": ("import asyncio\nraise asyncio.CancelledError\n", 2),
    "many lines": ("raise ValueError('''one\ntwo''')\n", 1),
    "without a text": ("class Odd(Exception):\n def __str__(self): raise KeyError\nraise Odd\n", 3),
    "an exit": ("import sys\nsys.exit(3)\n", None),
    "no function": ("handle = 5\n", None),
    "another function": ("def other(item): pass\n", None),
    "an attribute that raises": ("def __getattr__(name): raise OSError(name)\n", None),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize("fault", BROKEN)
def test_the_error_names_handler_and_line(fault: str, folder: Path) -> None:
    text, line = BROKEN[fault]
    module = f"broken_{list(BROKEN).index(fault)}"
    (folder / f"{module}.py").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(WritetimeError) as refused:
        load_handler(f"{module}:handle")
    said = str(refused.value)
    assert said.startswith(f"handler {module}:handle: ")
    assert "\n" not in said
    if line is not None:
        assert f"{folder / module}.py:{line}: " in said


def test_a_fault_in_a_module_that_the_handler_imports_has_its_place(folder: Path) -> None:
    (folder / "outer_part.py").write_text("import inner_part\n\ndef handle(item): pass\n")
    (folder / "inner_part.py").write_text("\n1 / 0\n")
    with pytest.raises(WritetimeError, match=f"outer_part:handle: .*{folder}/inner_part.py:2: ZeroDivisionError"):
        load_handler("outer_part:handle")


@pytest.mark.parametrize(
    "path", ["", ":", "handlers", "handlers:", ":handle", ".handlers:handle", "a b:c", "no_such:handle", "a..b:c"]
)
def test_another_name_is_asked_for(path: str, folder: Path) -> None:
    with pytest.raises(WritetimeError, match="name it as module:function"):
        load_handler(path)


@pytest.mark.parametrize("command", [["work", "--queue", "q"], ["replay", "work", "q", "p"]])
def test_commands_show_one_line(command: list[str], folder: Path) -> None:
    (folder / "unready.py").write_text("def handle(item):\n    return (\n")
    line = [sys.executable, "-m", "writetime", *command, "--handler", "unready:handle"]
    ended = subprocess.run(line, env=os.environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert f"{folder}/unready.py:2: SyntaxError" in ended.stderr

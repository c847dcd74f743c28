"""A folder like a fresh clone, in which the blocks of documents are run like by a user."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import click
import duckdb
import pytest
from click.testing import CliRunner

from tests.support.documents import ROOT, Block
from tests.support.examples import is_long_run
from tests.support.waiting import PATIENCE_SECONDS
from writetime.cli.main import main
from writetime.core import config
from writetime.servers.process import port_answers
from writetime.wire.watermarks import WatermarkTopic, statuses

# Programs that run until Ctrl-C: the test starts and ends them.
SERVICES = ("serve", "sink", "agent", "follow", "work")
# `make test` starts these once for all documents that name them with the same arguments: no command of later documents
# needs them, and each start takes seconds.
_ONCE = ("writetime agent", "writetime follow", "writetime work")
# Commands that are only parsed and not run, and why.
CHECKED = {
    "make setup": "tests run in an environment that is set up",
    "make instance": "its two lines are what this folder has",
    "make demo": "what it launches is run by tests/assets/test_demo.py, and itself before each release",
    "make test": "this is a part of it",
    "make ui": "the web UI is started by tests/browser",
    "make ui WORKSPACE=demo/workspace.yaml": "the same; tests/assets/test_demo.py runs the demo",
    "writetime down": "tests share the servers; tests/servers/test_servers.py stops some",
}


class Folder:
    """Runs blocks one after the other. Exported variables are kept, as in a terminal.

    Each command of `writetime` is run as a program once. From then on it runs in this process, unless its line needs a
    shell: most of the CPU of such a program goes into its imports. `were_programs` are the commands that were run so
    already; several folders may share it.
    """

    def __init__(
        self,
        path: Path,
        ingress_port: int,
        given: dict[str, Any],
        replaced: Mapping[str, str] | None = None,
        were_programs: set[str] | None = None,
    ) -> None:
        self._path = path
        self._given = given
        # All that is changed of a document's text: an address that others may use, and a path that it does not name.
        self._replaced = {
            r"localhost:18080": f"localhost:{ingress_port}",
            r"(?<![\w$])PATH(?![\w=])": given["snapshot"],
            **(replaced or {}),
        }
        self._ingress_port = ingress_port
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        self._were_services: set[str] = set()
        self._were_programs = set[str]() if were_programs is None else were_programs
        self._output = ""
        self._last: Block | None = None
        path.mkdir()
        for name in ("Makefile", "assets", "resources", "platform", "cql", "demo", "deploy", "docs", "workspace.yaml"):
            (path / name).symlink_to(ROOT / name)
        for name in ("requirements.lock", "pyproject.toml", "dagster.yaml"):
            (path / name).symlink_to(ROOT / name)
        (path / ".venv").symlink_to(sys.prefix)
        instance = path / ".writetime" / "dagster"
        instance.mkdir(parents=True)
        (instance / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
        (path / "my_module.py").write_text("def send(item):\n    return {'sent': item.payload['to']}\n")
        # Then curl fails where the answer is an error.
        (path / ".curlrc").write_text("fail\n")
        self._variables = path.parent / f"{path.name}.sh"
        self._variables.write_text("")
        self._log = path.parent / f"{path.name}.log"

    def run(self, block: Block) -> None:
        """Run a block, or check it in the way that it names."""
        said = block.said
        if "file" in said:
            (self._path / said["file"]).write_text(block.text)
        elif "not run" in said or (block.language in ("text", "") and "shown" not in said):
            assert said.get("not run", "a reason"), f"{block.place} does not say why it is not run"
        elif "shown" in said:
            self._shown(block)
        else:
            kinds = {"sh": self._shell, "python": self._python, "toml": self._settings, "sql": self._sql}
            assert block.language in kinds | {"ends": 0}, f"{block.place} is neither run nor excused"
            self._ends(block) if block.language == "ends" else kinds[block.language](block)

    def end(self) -> None:
        """End the running programs, as Ctrl-C does, at the end of a document."""
        self._were_services |= self._services.keys()
        for command in list(self._services):
            self._end(command)

    def _shell(self, block: Block) -> None:
        self._output, self._last = "", block
        commands = block.commands()
        for number, command in enumerate(commands, 1):
            plain = command.split("#")[0].strip()
            if plain in CHECKED:
                if plain.startswith("make"):
                    self._bash(block, command.replace("make", "make -n", 1))
            elif re.match(rf"writetime ({'|'.join(SERVICES)})( |$)", plain):
                self._start(plain, command)
            else:
                fails = block.said.get("fails") if number == len(commands) else None
                self._output += self._once(block, command, fails)

    def _once(self, block: Block, command: str, fails: str | None) -> str:
        """Run a command that ends by itself; return its output."""
        named = set(re.findall(r"writetime ([\w-]+)", command))
        if not named <= self._were_programs:
            self._were_programs |= named
            return self._bash(block, command, fails)
        # A shell replaces a command by its output.
        command = re.sub(r"\$\((.*?)\)", lambda inner: " ".join(self._once(block, inner[1], None).split()), command)
        program, *arguments = words(self._with(command)) or [""]
        if not arguments or not program.endswith("writetime"):
            return self._bash(block, command, fails)
        with chdir(self._path):
            answer = CliRunner().invoke(main, arguments, catch_exceptions=False)
        _check(f"{block.place}: {command}", answer.exit_code, answer.output, fails)
        return answer.output

    def _bash(self, block: Block, command: str, fails: str | None = None) -> str:
        script = f". {self._variables}\n{self._with(command)}\nexport -p > {self._variables}\n"
        answer = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=self._path,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        _check(f"{block.place}: {command}", answer.returncode, answer.stdout, fails)
        return answer.stdout

    def _start(self, plain: str, command: str) -> None:
        was_started = plain in self._were_services and plain.startswith(_ONCE) and not is_long_run()
        if plain in self._services or was_started:
            return
        status = self._path / ".writetime/capture/status.json"
        status.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-ec", f". {self._variables}\nexec {self._with(command)}"],
                cwd=self._path,
                env=self._environment(),
                stdout=log,
                stderr=log,
            )
        self._services[plain] = process
        began = time.time()
        ready: dict[str, Callable[[], bool]] = {
            "writetime serve": lambda: port_answers(self._ingress_port),
            # It says something of itself in Kafka at the end of its first round, when each table has its topic.
            "writetime agent": lambda: (
                status.exists()
                and any(said.get("at", 0) > began for said in statuses(WatermarkTopic(config.load()).read()).values())
            ),
            # Before that, a signal would end it in the middle of its imports.
            "writetime follow": lambda: handles_signals(process.pid),
        }
        deadline = time.monotonic() + PATIENCE_SECONDS
        command = " ".join(plain.split()[:2])
        while command in ready and not ready[command]():
            assert process.poll() is None, f"{plain} ended:\n{self._log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"{plain} is not ready:\n{self._log.read_text()[-4000:]}"
            time.sleep(0.1)

    def _ends(self, block: Block) -> None:
        assert block.text in self._services, f"{block.place}: {block.text} does not run"
        self._end(block.text)

    def _end(self, command: str) -> None:
        process = self._services.pop(command)
        process.send_signal(signal.SIGINT)
        try:
            status = process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
        assert status == 0, f"{command} ended with {status}:\n{self._log.read_text()[-4000:]}"

    def _shown(self, block: Block) -> None:
        """An agent publishes a moment later, so commands are repeated until their output is as expected."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while missing := [line for line in block.text.splitlines() if not _is_in(line, self._output)]:
            assert self._last is not None, f"{block.place}: no commands came before"
            assert time.monotonic() < deadline, f"{block.place}: {missing} is not in\n{self._output}"
            time.sleep(0.3)
            self._shell(self._last)

    def _python(self, block: Block) -> None:
        text = self._with(block.text).replace(".writetime/", f"{self._path}/.writetime/")
        exec(compile(text, block.place, "exec"), {"settings": config.load(), **self._given})

    def _sql(self, block: Block) -> None:
        connection: duckdb.DuckDBPyConnection = self._given["duckdb"]
        connection.sql(block.text.replace(".writetime/", f"{self._path}/.writetime/")).fetchall()

    def _settings(self, block: Block) -> None:
        """Settings that a user may have must be settings; secrets come from the environment, as documents advise."""
        file = self._path.parent / "block.toml"
        file.write_text(block.text)
        sections = tomllib.loads(block.text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WRITETIME_CONFIG", str(file))
            for name, section in sections.items():
                if "username" in section and "password" not in section:
                    patch.setenv(f"WRITETIME_{name.upper()}__PASSWORD", "secret")
            if "host" in sections.get("ingest", {}):
                patch.setenv("WRITETIME_INGEST__TOKENS", '["a token of some length"]')
            config.load()

    def _with(self, text: str) -> str:
        for old, new in self._replaced.items():
            text = re.sub(old, new, text)
        return text

    def _environment(self) -> dict[str, str]:
        # `writetime` alone is what the first step of README and tutorials makes of it. The folder is found as an
        # installation finds it: by the environment, which may be that of another copy.
        own = {
            "PATH": f"{self._path}/.venv/bin:{os.environ['PATH']}",
            "PYTHONPATH": f"{self._path}:{ROOT / 'platform'}:{ROOT}",
            "CURL_HOME": str(self._path),
        }
        return os.environ | own


def words(command: str) -> list[str]:
    """Return the words of a command line; none if a shell has to do more than to start the program."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found = list(lexer)
    is_for_shell = not set("$*?~`").isdisjoint(command) or any(set(word) <= set("();<>|&") for word in found)
    return [] if is_for_shell else found


def handles_signals(pid: int) -> bool:
    """Return whether a process of Linux has a handler for SIGTERM; elsewhere always."""
    try:
        [caught] = re.findall(r"(?m)^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text())
    except FileNotFoundError:
        return sys.platform != "linux"
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _check(what: str, status: int, printed: str, fails: str | None) -> None:
    """Compare a command's exit status with its block's."""
    told = f"{what}\n{printed[-4000:]}"
    if fails is None:
        assert status == 0, told
    else:
        assert status != 0, told
        assert _plain(fails) in _plain(printed), told


def _is_in(line: str, printed: str) -> bool:
    """Return whether a line was printed; `...` in it stands for a few words that differ from run to run."""
    pattern = ".{0,60}?".join(re.escape(_plain(part)) for part in line.split("..."))
    return re.search(pattern, _plain(click.unstyle(printed))) is not None


def _plain(text: str) -> str:
    return " ".join(text.split())

"""The command line itself: its list of commands, and the cost of the list."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from writetime.cli.main import COMMANDS, first_sentence, main


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_has_the_first_sentence_of_each_help(name: str) -> None:
    command = main.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    assert command.help is not None
    assert " ".join(command.help.split()).startswith(first_sentence(COMMANDS[name]).rstrip("."))


@pytest.mark.parametrize(("arguments", "meant"), [(["verfy"], "verify"), (["queue", "inspct"], "inspect")])
def test_an_unknown_command_is_named_with_the_one_that_was_meant(arguments: list[str], meant: str) -> None:
    answer = CliRunner().invoke(main, arguments)
    assert answer.exit_code == 2
    assert f"No such command '{arguments[-1]}'. Did you mean '{meant}'?" in answer.output


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_list_of_commands_imports_none_of_them(option: str) -> None:
    code = (
        "import sys; from writetime.cli.main import main; main([sys.argv[1]], standalone_mode=False);"
        "print({n.partition('.')[0] for n in sys.modules} & {'cassandra', 'dagster', 'numba', 'pyarrow', 'pydantic'})"
    )
    done = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"

"""Commands of Writetime, run in this process."""

from click.testing import CliRunner

from writetime.cli.main import main


def run(*arguments: str) -> str:
    """Run a command; return its output."""
    answer = CliRunner(catch_exceptions=False).invoke(main, list(arguments))
    assert answer.exit_code == 0, answer.output
    return answer.stdout

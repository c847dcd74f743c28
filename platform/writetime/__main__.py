"""Runs the shell command as `python -m writetime`."""

from writetime.cli.main import main

main()

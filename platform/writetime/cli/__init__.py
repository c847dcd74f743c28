"""The shell command `writetime`: one module for the commands of each package."""

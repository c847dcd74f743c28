"""Runs of Dagster in the process that launches them: they share its imports and one Java process for Spark."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.sync_in_memory_run_launcher import SyncInMemoryRunLauncher


class ThreadRunLauncher(SyncInMemoryRunLauncher):
    """Executes runs one after the other in a thread, because a web server launches them in its event loop."""

    def __init__(self, inst_data: Any = None) -> None:
        super().__init__(inst_data)
        self._thread = ThreadPoolExecutor(1)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Let the thread execute a run."""
        self._thread.submit(super().launch_run, context)

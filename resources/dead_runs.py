"""Ends runs whose processes have died.

The daemon's run monitoring does this for the runs that it started. A run of `dagster job execute` would count as in
progress forever, and keep its place in each pool. So such a run has a tag with its host and process. Each run looks for
dead ones of its own host when it begins, and while it waits for a pool.
"""

import json
import multiprocessing
import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

import dagster as dg
import psutil

from writetime_dagster.resources.private_dagster import sleep_in_pools

# Tag of a run outside the daemon: the host, and the process with its start, as JSON.
PROCESS = "writetime/process"
HOST = "writetime/host"
_IN_PROGRESS = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
# The clock of a process's start may be a little different in each look.
_START_SECONDS = 2.0


def begin(context: dg.InitResourceContext) -> None:
    """Tag the run of this process, and end dead runs. A process that Dagster started gets no tag: it runs a step, or
    the daemon monitors it.
    """
    sleep_in_pools(end_dead_runs)
    instance, run_id = context.instance, context.run_id
    if instance is None or run_id is None or multiprocessing.parent_process() is not None:
        return
    run = instance.get_run_by_id(run_id)
    if run is None or run.tags.get(PROCESS) == (tag := process_tag(run_id)):
        return
    instance.add_run_tags(run_id, {HOST: host_tag(), PROCESS: tag})
    end_dead_runs(instance)


def end_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """End the runs of this host whose processes are gone, and free their places in pools. Return their ids."""
    ended = []
    for run in instance.get_runs(dg.RunsFilter(statuses=_IN_PROGRESS, tags={HOST: host_tag()})):
        of_run, pid, start = json.loads(run.tags[PROCESS])
        # A run that repeats another one inherits its tags.
        if of_run != run.run_id or _lives(pid, start):
            continue
        # It may have ended between the two looks.
        present = instance.get_run_by_id(run.run_id)
        if present is not None and not present.is_finished:
            instance.report_run_failed(present, "The process of the run has died without reporting its end.")
            ended.append(run.run_id)
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return ended


@cache
def host_tag() -> str:
    """Return a name of this machine, or of this container: those of one machine do not see each other's processes."""
    parts = [platform.node()]
    for read in (lambda: Path("/etc/machine-id").read_text(), lambda: os.readlink("/proc/self/ns/pid")):
        with suppress(OSError):
            parts.append(read().strip())
    return "/".join(parts)


def process_tag(run_id: str) -> str:
    """Return a run with this process and its start: the number of a process is used again, also after a restart."""
    return json.dumps([run_id, os.getpid(), psutil.Process().create_time()])


def _lives(pid: int, start: float) -> bool:
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - start) < _START_SECONDS and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

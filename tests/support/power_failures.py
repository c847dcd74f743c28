"""The files that a power failure may leave, from the system calls of a program, by strace.

A file system may keep or lose each name that was not synced with its folder, and each file's content that was not
synced, in any combination (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014). Files are written once,
so the content is either complete, or missing.
"""

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

STRACE = shutil.which("strace")
_CALLS = "openat,creat,mkdir,mkdirat,link,linkat,rename,renameat,renameat2,fsync,fdatasync"
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OF_FILE = re.compile(r"\d+<([^>]*)>")


@dataclass(frozen=True)
class Call:
    """A name that a call made (of the file with another name, if any), or a file or folder that it synced."""

    made: str = ""
    of: str = ""
    synced: str = ""


@dataclass
class Disk:
    """The names that a disk has, each with the file that it was created as, and what is durable of them."""

    file_of: dict[str, str] = field(default_factory=dict)
    durable_names: set[str] = field(default_factory=set)
    durable_files: set[str] = field(default_factory=set)

    def apply(self, call: Call) -> None:
        if call.made:
            self.file_of[call.made] = self.file_of.get(call.of, call.made)
        elif call.synced in self.file_of:
            self.durable_files.add(self.file_of[call.synced])
        self.durable_names |= {n for n in self.file_of if call.synced and n.rpartition("/")[0] == call.synced}


def record(folder: Path, script: str, *arguments: str) -> list[Call]:
    """Run a Python script; return its calls for files below a folder."""
    log = folder.parent / "calls"
    command = [sys.executable, "-c", script, *arguments]
    subprocess.run([str(STRACE), "-f", "-y", "-s", "4096", "-e", f"trace={_CALLS}", "-o", log, *command], check=True)
    found = [_call(line) for line in _whole_lines(log.read_text(errors="replace").splitlines())]
    below = f"{folder}/"
    return [c for c in found if c and (c.made.startswith(below) or f"{c.synced}/".startswith(below))]


def left_by(calls: Iterable[Call], before: Path, after: Path, target: Path, chooser: random.Random | None) -> None:
    """Make the files that a failure after some calls leaves. Without a chooser, all that is not durable is lost.

    Args:
        calls: the calls before the failure.
        before: the files before the first call.
        after: the files after the last call, below the folder of the calls.
        target: the folder for the files.
        chooser: decides what is kept of what is not durable.
    """
    disk = Disk()
    for call in calls:
        disk.apply(call)
    shutil.copytree(before, target)
    for name, file in disk.file_of.items():
        source = Path(name)
        is_kept = name in disk.durable_names or (chooser is not None and chooser.random() < 0.5)
        if not is_kept or not source.is_relative_to(after):
            continue
        path = target / source.relative_to(after)
        if source.is_dir():
            path.mkdir(parents=True, exist_ok=True)
        elif path.parent.is_dir():
            is_whole = file in disk.durable_files or (chooser is not None and chooser.random() < 0.5)
            path.write_bytes(source.read_bytes() if is_whole and source.exists() else b"")


def _whole_lines(lines: Iterable[str]) -> Iterable[str]:
    """Join the two lines of a call during which another thread made one."""
    begun: dict[str, str] = {}
    for line in lines:
        pid, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            begun[pid] = text.removesuffix("<unfinished ...>")
        elif text.startswith("<..."):
            yield begun.pop(pid, "") + text.partition("resumed>")[2]
        else:
            yield text


def _call(text: str) -> Call | None:
    name, _, rest = text.partition("(")
    named, result = _NAMED.findall(rest), rest.rpartition("= ")[2]
    if result.startswith("-"):
        return None
    match name:
        case "openat" | "creat" if "O_CREAT" in rest or name == "creat":
            return Call(made=named[0])
        case "mkdir" | "mkdirat":
            return Call(made=named[-1])
        case "link" | "linkat" | "rename" | "renameat" | "renameat2":
            return Call(made=named[1], of=named[0])
        case "fsync" | "fdatasync":
            found = _OF_FILE.search(rest)
            return Call(synced=found[1]) if found else None
    return None

"""A process that tries inputs one by one, and a process that watches it. If the first dies or hangs, this is a finding,
and the attack continues after that input."""

import json
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.attack.report import Report

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The limits of one input: seconds, and MiB of memory, touched and reserved."""

    seconds: float = 20.0
    touched_mib: int = 256
    reserved_mib: int = 4096


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def work(trials: Iterator[tuple[int, str, Callable[[], str | list[str]]]], limits: Limits) -> None:
    """Try inputs, given by number, target, and what tries one and returns its outcome, or several; print a line for
    each outcome."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reserved = 0
    for number, target, attempt in trials:
        if not reserved:
            reserved = _status("VmSize") + limits.reserved_mib * MIB
            resource.setrlimit(resource.RLIMIT_AS, (reserved, reserved))
        _say(number=number, target=target)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmHWM")
        try:
            outcome, finding = attempt(), ""
            for one in outcome[:-1] if isinstance(outcome, list) else ():
                _say(number=number, target=target, outcome=one, finding="")
            outcome = outcome[-1] if isinstance(outcome, list) else outcome
        except Exception as e:
            where = traceback.extract_tb(e.__traceback__)[-1]
            outcome, finding = "wrong error", f"{type(e).__name__} at {Path(where.filename).name}:{where.lineno}: {e}"
        if (taken := _status("VmHWM") - before) > limits.touched_mib * MIB:
            outcome, finding = "memory", f"took {taken // MIB} MiB"
        _say(number=number, target=target, outcome=outcome, finding=finding[:500])


def _say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def watch(
    attack: str, seed: int, rounds: int | None, seconds: float | None, first: int, limits: Limits, report: Report
) -> None:
    """Run the command of an attack, `tests.attack.<attack> --worker`, until it tried so many inputs, or for so long."""
    ends = None if seconds is None else time.monotonic() + seconds

    def command(following: int) -> list[str]:
        rest = ["--rounds", str(rounds - (following - first))] if rounds is not None else []
        rest += ["--seconds", f"{ends - time.monotonic():.3f}"] if ends is not None else []
        return ["-m", f"tests.attack.{attack}", "--worker", "--seed", str(seed), "--first", str(following), *rest]

    Watch(command, report, limits).run(first, ends)


class Watch:
    """Runs a worker again and again until it ends by itself."""

    def __init__(self, command: Callable[[int], Sequence[str]], report: Report, limits: Limits) -> None:
        self._command = command
        self._report = report
        self._limits = limits

    def run(self, first: int, deadline: float | None) -> None:
        """Run from an input on, by its number, until the worker ends or the deadline (of `time.monotonic`) passed."""
        following = first
        while deadline is None or time.monotonic() < deadline:
            last, target, fault = self._once(following)
            if not fault:
                return
            self._report.add(target, fault.partition(":")[0])
            self._report.findings.append(f"input {last}, {target}: {fault}")
            following = last + 1

    def _once(self, first: int) -> tuple[int, str, str]:
        command = [sys.executable, *self._command(first)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines: queue.Queue[str] = queue.Queue()
        errors: list[str] = []
        readers = [
            threading.Thread(target=_read_lines, args=(process.stdout, lines.put)),
            threading.Thread(target=_read_lines, args=(process.stderr, errors.append)),
        ]
        for reader in readers:
            reader.start()
        number, target, hangs = first - 1, "start", False
        # The start compiles, if no earlier program has.
        patience = 600.0
        while True:
            try:
                text = lines.get(timeout=patience)
            except queue.Empty:
                hangs = True
                process.kill()
                break
            if not text:
                break
            line = json.loads(text)
            patience = self._limits.seconds
            number = line["number"]
            target = line.get("target", target)
            if "outcome" in line:
                self._report.add(target, line["outcome"])
                if line["finding"]:
                    self._report.findings.append(f"input {number}, {target}: {line['outcome']}: {line['finding']}")
                target = "between inputs"
        code = process.wait()
        for reader in readers:
            reader.join()
        if hangs:
            return number, target, f"hang: no answer in {patience:.0f} s"
        if code < 0:
            return number, target, f"crash: {signal.Signals(-code).name}"
        if code:
            raise SystemExit(f"the worker cannot work: {''.join(errors)[-2000:]}")
        return number, target, ""


def _read_lines(stream: "Iterator[str] | None", take: Callable[[str], object]) -> None:
    for line in stream or ():
        take(line)
    take("")

"""Asks OSV.dev for known vulnerabilities of all pinned packages and jars: `python -m tools.audit`, a part of `make
lint`.

The audit fails if a package of `requirements.lock` has a vulnerability that `accepted.toml` does not accept.
Vulnerabilities of jars are only listed: each version of a server requires certain jars, and the embedded servers listen
on loopback only. If OSV cannot be reached, the audit reports this, and does not fail. `OSV_URL` names another address
with the same API.

Source of the API: "POST /v1/querybatch" in OSV's documentation (answers have the order of the queries).
"""

import json
import os
import re
import sys
import tomllib
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from writetime.runtime import jars

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
ACCEPTED = Path(__file__).with_name("accepted.toml")
_URL = "https://api.osv.dev/v1/querybatch"
_QUERIES_PER_CALL = 500
_TIMEOUT_SECONDS = 15.0


@dataclass(frozen=True)
class Package:
    """A pinned package or jar, as OSV names it."""

    ecosystem: str
    name: str
    version: str


def packages() -> list[Package]:
    """Return all pinned packages and jars, each once."""
    pinned = re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", LOCK.read_text(), re.M)
    sets = {line.split()[0] for line in jars.LOCK_FILE.read_text().splitlines() if line and not line.startswith("#")}
    found = [Package("PyPI", name, version) for name, version in pinned]
    found += [
        Package("Maven", f"{jar.group}:{jar.artifact}", jar.version)
        for name in sorted(sets)
        for jar in jars.pinned(name)
    ]
    return list(dict.fromkeys(found))


def vulnerabilities(asked: Sequence[Package], url: str, per_call: int) -> dict[Package, list[str]]:
    """Return the ids of known vulnerabilities per package; most have none.

    Args:
        asked: the packages.
        url: the address of OSV.
        per_call: the number of queries per call.

    Raises:
        OSError: OSV does not answer.
        ValueError: the answer is invalid.
    """
    found: dict[Package, list[str]] = {}
    waiting: list[tuple[Package, str | None]] = [(package, None) for package in asked]
    while waiting:
        part, waiting = waiting[:per_call], waiting[per_call:]
        results = _ask(url, [_query(package, page) for package, page in part])
        if len(results) != len(part):
            raise ValueError(f"{len(results)} answers to {len(part)} queries")
        for (package, _), result in zip(part, results, strict=True):
            if ids := [vulnerability["id"] for vulnerability in result.get("vulns", [])]:
                found.setdefault(package, []).extend(ids)
            if page := result.get("next_page_token"):
                waiting.append((package, page))
    return found


def _query(package: Package, page: str | None) -> dict[str, Any]:
    query = {"package": {"ecosystem": package.ecosystem, "name": package.name}, "version": package.version}
    return query | ({"page_token": page} if page else {})


def _ask(url: str, queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        url, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
        body = json.load(answer)
    if not isinstance(body, dict) or not isinstance(body.get("results"), list):
        raise ValueError("no results")
    return body["results"]


def main(per_call: int = _QUERIES_PER_CALL) -> int:
    """Print the findings; return the exit status."""
    accepted = {entry["id"]: entry["reason"] for entry in tomllib.loads(ACCEPTED.read_text()).get("accepted", [])}
    asked, url = packages(), os.environ.get("OSV_URL", _URL)
    try:
        found = vulnerabilities(asked, url, per_call)
    except (OSError, ValueError) as e:
        print(f"audit: NOT DONE, because {url} gives no answer ({e}); nothing is known of {len(asked)} pinned packages")
        return 0
    failed = 0
    for package, ids in found.items():
        open_ids = [i for i in ids if i not in accepted]
        fails = bool(open_ids) and package.ecosystem == "PyPI"
        failed += fails
        what = "VULNERABLE" if fails else "known" if open_ids else "accepted"
        print(f"audit: {what}: {package.name} {package.version}: {', '.join(open_ids or ids)}")
    for unused in sorted(accepted.keys() - {i for ids in found.values() for i in ids}):
        print(f"audit: {unused} is accepted in {ACCEPTED.name}, but no pinned package has it any more; remove it")
    print(f"audit: {len(asked)} pinned packages, {len(found)} with known vulnerabilities, {failed} of them fail this")
    if failed:
        print(f"audit: pin a newer version, or accept the id with its reason in {ACCEPTED.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

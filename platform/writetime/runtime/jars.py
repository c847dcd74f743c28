"""Fetches the pinned jars of the embedded servers, of Spark's connectors and of the programs that benchmarks compare
with, from Maven repositories.

`jars.lock` in the folder of this module lists each jar as `SET GROUP:ARTIFACT:VERSION[:CLASSIFIER][@TYPE] SHA256`. The
type is `jar` by default. pyspark's Ivy fetches each jar once, without its transitive dependencies, into a cache that
all clones share (`WRITETIME_CACHE`, else the user's cache folder). `checked.json` has the size and modification time of
each jar at its last comparison with its digest. If these have changed, a cached jar is compared again.
`WRITETIME_IVY_SETTINGS` names an Ivy settings file for a mirror, whose resolvers should also have `usepoms="false"`.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.x509 import load_pem_x509_certificates

from writetime.core.errors import WritetimeError, naming
from writetime.core.extras import is_installed, needs
from writetime.runtime.java import java

LOCK_FILE = Path(__file__).with_name("jars.lock")
JARS_PER_RUN = 25
_CHECKED_FILE = "checked.json"
# POMs are not read: nothing in them is used, and Debezium's POMs name a parent that was not published.
_IVY_SETTINGS = """<ivysettings><settings defaultResolver="central"/>
<resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers></ivysettings>"""


@dataclass(frozen=True)
class Jar:
    """One pinned jar."""

    group: str
    artifact: str
    version: str
    classifier: str
    type: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The file's name in the cache, unique among all jars; Cassandra and Kafka need different builds of some."""
        return "-".join(filter(None, [self.group, self.artifact, self.version, self.classifier])) + f".{self.type}"


def cache_folder() -> Path:
    """Return the folder of downloaded jars."""
    root = os.environ.get("WRITETIME_CACHE")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "writetime"
    return base / "jars"


def pinned(set_name: str) -> list[Jar]:
    """Return the jars of one set, such as `cassandra`, in the lock file's order."""
    jars = []
    for line in LOCK_FILE.read_text().splitlines():
        if line and not line.startswith("#") and line.split()[0] == set_name:
            _, coordinate, sha256 = line.split()
            names, _, kind = coordinate.partition("@")
            group, artifact, version, *classifier = names.split(":")
            jars.append(Jar(group, artifact, version, classifier[0] if classifier else "", kind or "jar", sha256))
    return jars


def fetch(*set_names: str) -> list[Path]:
    """Return the paths of all jars of these sets. Jars that the cache does not have as pinned are downloaded. Raises
    WritetimeError: a jar could not be fetched or is not the pinned one.
    """
    cache = cache_folder()
    if _runs(set_names, cache):
        cache.mkdir(parents=True, exist_ok=True)
        # Programs that need the same jars wait for the one that fetches them.
        with (cache / "fetch.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if runs := _runs(set_names, cache):
                print(f"fetching {sum(map(len, runs))} jars ({', '.join(set_names)}) ...", file=sys.stderr)
                with ThreadPoolExecutor(max_workers=4) as pool:
                    list(pool.map(lambda jars: _download(jars, cache), runs))
    return [cache / jar.file_name for name in set_names for jar in pinned(name)]


def _runs(set_names: Sequence[str], cache: Path) -> list[list[Jar]]:
    """Return the jars that the cache does not have as pinned, by runs of Ivy. A run never mixes sets: in one module Ivy
    would keep only one version of a jar that two sets pin differently. Ivy waits for one jar at a time, so several runs
    fetch a large set in parallel.
    """
    intact = _intact([jar for name in set_names for jar in pinned(name)], cache)
    runs = []
    for name in set_names:
        missing = [jar for jar in pinned(name) if jar.file_name not in intact]
        runs += [missing[i : i + JARS_PER_RUN] for i in range(0, len(missing), JARS_PER_RUN)]
    return runs


def _intact(jars: list[Jar], cache: Path) -> set[str]:
    """Return the file names of the cached jars that match their pinned digests."""
    record = cache / _CHECKED_FILE
    try:
        checked = json.loads(record.read_text())
    except (OSError, ValueError):
        checked = {}
    known = dict(checked)
    intact = set()
    for jar in jars:
        path = cache / jar.file_name
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        key = [jar.sha256, found.st_size, found.st_mtime_ns]
        if checked.get(jar.file_name) != key and _sha256(path) != jar.sha256:
            print(f"warning: {path} is not the jar that {LOCK_FILE.name} pins; it is replaced", file=sys.stderr)
            continue
        checked[jar.file_name] = key
        intact.add(jar.file_name)
    if checked != known:
        # Of programs that write at once the last one wins; jars that it does not have are compared again, as are
        # all of a cache that cannot be written, such as an image's.
        with suppress(OSError):
            with naming(cache), tempfile.NamedTemporaryFile("w", dir=cache, delete=False) as scratch:
                json.dump(checked, scratch)
            # Several users may share the cache, and a temporary file is of its owner alone.
            os.chmod(scratch.name, 0o644)
            os.replace(scratch.name, record)
    return intact


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(jars: list[Jar], cache: Path) -> None:
    """Fetch into a scratch folder, check each digest, then move into the cache. Moves are atomic, so several runs may
    do this at once.
    """
    with tempfile.TemporaryDirectory(dir=cache) as scratch_name:
        scratch = Path(scratch_name)
        ivy_file = scratch / "ivy.xml"
        ivy_file.write_text(_ivy_module(jars))
        pattern = scratch / "[organisation]-[artifact]-[revision](-[classifier]).[ext]"
        command: list[str | Path] = [java(), *_trust_options(scratch), "-cp", _ivy_jar(), "org.apache.ivy.Main"]
        settings = scratch / "settings.xml"
        settings.write_text(_IVY_SETTINGS)
        command += ["-settings", os.environ.get("WRITETIME_IVY_SETTINGS") or settings]
        command += ["-warn", "-ivy", ivy_file, "-cache", scratch / "ivy", "-retrieve", pattern]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        for jar in jars:
            path = scratch / jar.file_name
            if not path.is_file():
                detail = (answer.stdout + answer.stderr).strip()[-2000:]
                raise WritetimeError(
                    f"{jar.file_name} could not be fetched; check the network, or name a mirror's Ivy settings in "
                    f"WRITETIME_IVY_SETTINGS. Ivy said:\n{detail}"
                )
            digest = _sha256(path)
            if digest != jar.sha256:
                raise WritetimeError(f"{jar.file_name} has SHA-256 {digest}, but {LOCK_FILE.name} pins {jar.sha256}")
            path.rename(cache / jar.file_name)


def _ivy_module(jars: list[Jar]) -> str:
    """Write an Ivy module that depends on these jars; all classifiers of one module go into one dependency."""
    modules: dict[tuple[str, str, str], list[Jar]] = {}
    for jar in jars:
        modules.setdefault((jar.group, jar.artifact, jar.version), []).append(jar)
    dependencies = ""
    for (group, artifact, version), found in modules.items():
        files = "".join(
            f'<artifact name="{artifact}" type="{jar.type}"'
            + (f' m:classifier="{jar.classifier}"' if jar.classifier else "")
            + "/>"
            for jar in found
        )
        dependencies += (
            f'<dependency org="{group}" name="{artifact}" rev="{version}" transitive="false" '
            f'conf="default->default">{files}</dependency>'
        )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="writetime" module="jars"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _trust_options(scratch: Path) -> list[str]:
    """Let Java trust the authorities in `SSL_CERT_FILE`, as Python does; a bundled JDK has only the public ones."""
    bundle = os.environ.get("SSL_CERT_FILE")
    if not bundle:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Old authorities have serial numbers that today's standard does not allow.
        certificates = load_pem_x509_certificates(Path(bundle).read_bytes())
    entries = [pkcs12.PKCS12Certificate(c, str(i).encode()) for i, c in enumerate(certificates)]
    store = scratch / "trust.p12"
    password = secrets.token_hex(16)
    store.write_bytes(pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(password.encode())))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={password}"]


def has_ivy() -> bool:
    """Return whether jars can be fetched: whether pyspark, which has Ivy, is installed."""
    return is_installed("pyspark")


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise WritetimeError(needs("embedded"))
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))

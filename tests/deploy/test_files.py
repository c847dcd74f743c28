"""Checks of images, the compose file and manifests that need no containers."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import CONTAINERS, KUBERNETES, ROOT, compose, manifests, pods, targets
from writetime.core import config
from writetime.runtime import jars

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
OURS = {f"writetime-{target}:{VERSION}" for target in ("agent", "services", "dagster")}
# The versions that the tests start, of the same servers.
SERVERS = {
    f"{image}:{jar.version}"
    for image, artifact, name in (
        ("cassandra", "cassandra-all", "cassandra"),
        ("apache/kafka", "kafka_2.13", "kafka"),
        ("zookeeper", "zookeeper", "zookeeper"),
    )
    for jar in jars.pinned(name)
    if jar.artifact == artifact
}
PODS = pods()


def is_ours(container: dict[str, Any]) -> bool:
    return container["image"].startswith("writetime-")


def load(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> config.Settings:
    (folder / "writetime.toml").write_text(text)
    monkeypatch.setenv("WRITETIME_CONFIG", str(folder / "writetime.toml"))
    return config.load()


def test_each_image_is_pinned_to_the_version_that_tests_run() -> None:
    described = compose()["services"].values()
    contained = [c for pod in PODS.values() for c in pod["spec"]["containers"]]
    images = {container["image"] for container in [*described, *contained]}
    assert images - OURS - SERVERS == {"postgres:17.6"}
    assert images >= OURS
    text = (CONTAINERS / "Dockerfile").read_text()
    assert f"ARG CASSANDRA={next(s for s in SERVERS if s.startswith('cassandra')).partition(':')[2]}\n" in text
    assert re.search(r"^ARG PYTHON=3\.\d+\.\d+-slim-\w+$", text, re.M)


@pytest.mark.parametrize(
    ("target", "packages"), [("agent", ""), ("services", "[lake,http]"), ("dagster", "[postgres]")]
)
def test_an_image_has_the_packages_of_its_programs_and_no_root(target: str, packages: str) -> None:
    lines = targets()[target]
    assert re.findall(r"pip install .* \"?(writetime[^\s\"]*)", lines) == [f"writetime{packages}"]
    assert re.findall(r"^USER (.*)$", lines, re.M)[-1] in ("999:999", "10001:10001")


@pytest.mark.parametrize("service", sorted(compose()["services"]))
def test_a_service_of_the_compose_file(service: str) -> None:
    everything = compose()
    found = everything["services"][service]
    named = [v.partition(":")[0] for v in found.get("volumes", []) if not v.startswith("./")]
    assert set(named) <= set(everything["volumes"])
    assert set(found.get("depends_on", {})) <= set(everything["services"])
    if is_ours(found):
        assert found["build"]["target"] == found["image"].removeprefix("writetime-").partition(":")[0]
        assert (found["read_only"], found["cap_drop"]) == (True, ["ALL"])
        assert "no-new-privileges:true" in found["security_opt"]
        assert {c["source"] for c in found["configs"]} <= set(everything["configs"])
    assert "healthcheck" in found or service == "init"


def test_each_probe_of_dagster_has_the_time_that_its_program_needs() -> None:
    services = compose()["services"]
    found = [found["healthcheck"]["timeout"] for name, found in services.items() if name.startswith("dagster")]
    probes = [
        container[probe]["timeoutSeconds"]
        for pod in PODS.values()
        for container in pod["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe")
        if container["image"].startswith("writetime-dagster") and probe in container
    ]
    assert (set(found), len(found)) == ({"20s"}, 3)
    assert (set(probes), len(probes)) == ({20}, 6)


def test_the_files_that_the_compose_file_names_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in compose()["configs"].values():
        assert (CONTAINERS / found["file"]).is_file()
    settings = load((CONTAINERS / "writetime.toml").read_text(), tmp_path, monkeypatch)
    assert settings.embedded.servers == []


def test_settings_of_kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variables of the Secret, which all of its pods have."""
    (found,) = [m for m in manifests() if m["kind"] == "ConfigMap"]
    secrets = [
        re.findall(r"--from-literal='?(\w+)=", file.read_text())
        for file in (KUBERNETES / "settings.yaml", ROOT / "docs/containers.md")
    ]
    assert secrets[0] == secrets[1]
    for name in secrets[0]:
        monkeypatch.setenv(name, '["0123456789abcdef"]' if name.endswith("TOKENS") else "secret")
    settings = load(found["data"]["writetime.toml"], tmp_path, monkeypatch)
    assert settings.lake.path.startswith("s3://")
    assert settings.cassandra.password is not None
    ports = [p for m in manifests() if m["metadata"]["name"] == "cassandra" for p in m["spec"].get("ports", [])]
    assert [p["port"] for p in ports] == [settings.cassandra.port]


@pytest.mark.parametrize("name", sorted(PODS))
def test_a_pod_of_kubernetes(name: str) -> None:
    pod, kind = PODS[name]["spec"], name.partition(" ")[0]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["enableServiceLinks"] is False
    volumes = {volume["name"] for volume in pod["volumes"]} | ({"data"} if kind == "StatefulSet" else set())
    for container in pod["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        if is_ours(container):
            own = container["securityContext"]
            assert (own["readOnlyRootFilesystem"], own["allowPrivilegeEscalation"]) == (True, False)
            assert own["capabilities"]["drop"] == ["ALL"]
            assert "livenessProbe" in container or kind == "Job"


def test_objects_of_kubernetes_find_their_pods() -> None:
    labels = [pod["metadata"]["labels"].items() for name, pod in PODS.items() if not name.startswith("Job")]
    for found in manifests():
        match found["kind"]:
            case "Service":
                assert any(found["spec"]["selector"].items() <= own for own in labels)
            case "Deployment" | "StatefulSet" | "DaemonSet":
                spec = found["spec"]
                assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_kubernetes_runs_the_commands_of_the_compose_file() -> None:
    services = compose()["services"]
    for name, pod in PODS.items():
        for container in pod["spec"]["containers"]:
            if is_ours(container):
                wanted = services[container["name"]].get("command", ["agent"])
                assert container["args"] == wanted, name

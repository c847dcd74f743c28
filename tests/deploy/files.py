"""The content of the files in deploy/ that describe containers."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "deploy/containers"
KUBERNETES = ROOT / "deploy/kubernetes"


def compose() -> dict[str, Any]:
    """Return the compose file."""
    return yaml.safe_load((CONTAINERS / "compose.yaml").read_text())


def manifests() -> list[dict[str, Any]]:
    """Return all objects of Kubernetes."""
    return [found for file in sorted(KUBERNETES.glob("*.yaml")) for found in yaml.safe_load_all(file.read_text())]


def pods() -> dict[str, dict[str, Any]]:
    """Return the templates of pods, by kind and name of the object that has them."""
    return {
        f"{found['kind']} {found['metadata']['name']}": found["spec"]["template"]
        for found in manifests()
        if "template" in found.get("spec", {})
    }


def targets() -> dict[str, str]:
    """Return the lines of each stage of the Dockerfile, by its name."""
    text = (CONTAINERS / "Dockerfile").read_text()
    parts = re.split(r"^FROM .* AS (\w+)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))

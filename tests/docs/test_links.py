"""Each link of a document leads to a file, and to a heading of it."""

import re

from tests.support.documents import ROOT, documents

LINK = re.compile(r"\]\(([^)\s#:]*)(?:#([\w-]+))?\)")


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^ *```.*?^ *```", "", text))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    wrong = []
    for document in [*documents(), "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]:
        for name, anchor in LINK.findall((ROOT / document).read_text()):
            target = (ROOT / document).parent / name if name else ROOT / document
            if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
                wrong.append(f"{document}: {name}#{anchor}")
    assert not wrong


def test_anchors_are_those_of_headings() -> None:
    text = "# `verify`: it's A, b\n```\n# no heading\n```\n## Pre- and postimages\n"
    assert anchors(text) == {"verify-its-a-b", "pre--and-postimages"}

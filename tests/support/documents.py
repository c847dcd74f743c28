"""The fenced blocks of a document, and the HTML comments above them:

- `<!-- not run: REASON -->`: the block is not run. Its `writetime` commands must exist nevertheless.
- `<!-- file: NAME -->`: the block is the content of this file.
- `<!-- fails: TEXT -->`: the last command fails, and prints this text.
- `<!-- shown -->`: each line of the block is in the output of the commands before it, except for spaces. `...` stands
  for a few words that differ from run to run.
- `<!-- ends: COMMAND -->`, without a block: a program that runs until Ctrl-C is ended.
"""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Run by `tests/scylla`, as it needs a ScyllaDB.
SCYLLA_TUTORIAL = "docs/tutorial-scylladb.md"
_DIRECTIVE = re.compile(r"\s*<!-- (not run|file|fails|shown|ends)(?:: (.*))? -->")
_FENCE = re.compile(r"\s*```(\w*)$")
_SPAN = re.compile(r"`(writetime [^`|]*)`")


@dataclass
class Block:
    """A fenced block, or an `ends` with the program as its text."""

    place: str
    language: str
    text: str = ""
    said: dict[str, str] = field(default_factory=dict)

    def commands(self) -> list[str]:
        """Return its commands, one for each line that is not continued."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]


def documents() -> list[str]:
    """Return the documents that users read, relative to the repository, those last that take the others as known."""
    last = ["docs/operations.md", "docs/tutorial.md", SCYLLA_TUTORIAL]
    others = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - set(last)
    return ["README.md", *sorted(others), *last]


def blocks(document: str) -> Iterator[Block]:
    """Yield the blocks of a document in order."""
    said: dict[str, str] = {}
    block: Block | None = None
    for number, line in enumerate((ROOT / document).read_text().splitlines(), 1):
        place = f"{document}:{number}"
        if block is not None:
            if line.strip() == "```":
                block.text = textwrap.dedent(block.text)
                yield block
                block = None
            else:
                block.text += line + "\n"
        elif found := _DIRECTIVE.fullmatch(line):
            if found[1] == "ends":
                yield Block(place, "ends", found[2])
            else:
                said[found[1]] = found[2] or ""
        elif fence := _FENCE.fullmatch(line):
            block, said = Block(place, fence[1], said=said), {}
        else:
            assert not said or not line.strip(), f"{place}: the comment above belongs to no block"


def mentioned(document: str) -> Iterator[list[str]]:
    """Yield the words of each `writetime` command in the text and in blocks that are not run."""
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    for span in _SPAN.findall(re.sub(r"\s*\n\s*", " ", text)):
        yield span.split()[1:]
    for block in blocks(document):
        if block.language == "sh" and ("not run" in block.said or document == SCYLLA_TUTORIAL):
            for command in block.commands():
                words = shlex.split(command, comments=True)
                if words and words[0] == "writetime":
                    yield words[1:]

"""Writes the reference of the Python interface as HTML: `python -m tools.api [FOLDER]`, as `make api` does.

The reference has the public names of `writetime` with their docstrings. It has no modules below `writetime`, because
they are not public.
"""

import sys
from pathlib import Path

import pdoc

import writetime

FOLDER = Path(".writetime/api")


def write(folder: Path) -> Path:
    """Write the reference into a folder, and return its page."""
    # pdoc looks for a name in the module itself and finds none that is imported on first use.
    for name in writetime.__all__:
        setattr(writetime, name, getattr(writetime, name))
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.pdoc("writetime", r"!writetime\..*", output_directory=folder)
    return folder / "writetime.html"


if __name__ == "__main__":
    print(f"written: {write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)}")

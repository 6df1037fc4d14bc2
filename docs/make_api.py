"""Writes the API reference from the docstrings: ``python docs/make_api.py SITE``; a warning is an error."""

from __future__ import annotations

import pkgutil
import sys
import warnings
from pathlib import Path

import pdoc

import ocr_phases


def make_api(folder: Path) -> None:
    """Write one HTML page a module into ``folder``; raises the first thing that pdoc would warn about."""
    for name in ocr_phases.__all__:
        setattr(ocr_phases, name, getattr(ocr_phases, name))  # pdoc sees what was imported already
    pdoc.render.configure(docformat="markdown", show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        # pdoc looks for a NamedTuple's names in the wrong module; the page shows them all the same.
        warnings.filterwarnings("ignore", "Error parsing type annotation ForwardRef")
        # A TypedDict or Struct that extends another keeps no trace of where an inherited entry was declared.
        warnings.filterwarnings("ignore", r"Cannot determine where ocr_phases\.")
        # What a table inherits is pandas' own.
        warnings.filterwarnings("ignore", r"Error parsing type annotation .* for pandas\.")
        rooms = [f"ocr_phases.{room.name}" for room in pkgutil.iter_modules(ocr_phases.__path__)]
        pdoc.pdoc("ocr_phases", *rooms, output_directory=folder)


if __name__ == "__main__":
    (target,) = sys.argv[1:]
    make_api(Path(target))
    print(f"Wrote {target}/index.html")

"""``ocr-phases notebooks``: the package's notebooks as files to run and change."""

from __future__ import annotations

import argparse
import re

from ocr_phases.cli.results import wrote


def run(arguments: argparse.Namespace) -> None:
    """Copy the notebooks of this package into a folder, for JupyterLab or papermill."""
    from ocr_phases.files import folder_for, only_writer, write_into
    from ocr_phases.versions import asset

    files = {path.name: path.read_bytes() for path in sorted(asset("notebooks").glob("*.ipynb"))}
    names = "|".join(map(re.escape, files))
    folder = folder_for(arguments.folder, "", names, overwrite=arguments.overwrite)
    with only_writer(folder):
        written = write_into(folder, files, overwrite=arguments.overwrite)
    arguments.result = {"files": [wrote(path) for path in written]}

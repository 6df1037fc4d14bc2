"""``ocr-phases html``: an executed notebook as one HTML file to share."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ocr_phases.cli.results import wrote


def run(arguments: argparse.Namespace) -> None:
    """Convert a notebook that has been run to one HTML file, which makes no network request."""
    from ocr_phases.files import check_names, output_folder
    from ocr_phases.report.render import render_html

    notebook = Path(arguments.notebook)
    # A folder such as . has no name whose ending could be another; it is refused where it is read.
    target = Path(arguments.out or notebook.parent / f"{notebook.stem}.html")
    check_names(
        output_folder(target.parent),
        re.escape(target.name),
        overwrite=arguments.overwrite,
        arguments=[notebook],
    )
    page = render_html(
        notebook,
        target,
        show_code=arguments.show_code,
        title=notebook.stem,
        overwrite=arguments.overwrite,
    )
    arguments.result = {"file": wrote(page)}

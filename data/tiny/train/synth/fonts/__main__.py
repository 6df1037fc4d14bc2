"""``python -m synth.fonts OUT_DIR``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ocr_phases.files import output_folder
from synth.fonts.debian import collect, debian_families


def main(arguments: Sequence[str] | None = None) -> None:
    """Collect the font files of the Debian families into a folder."""
    parser = argparse.ArgumentParser(prog="python -m synth.fonts", description=main.__doc__)
    parser.add_argument("folder", metavar="OUT_DIR", help="created where it is missing")
    folder = output_folder(parser.parse_args(arguments).folder)
    if missing := collect(folder):
        raise SystemExit(f"Files are missing; first run: apt-get install -y {' '.join(missing)}")
    families = len(debian_families(folder)), len(debian_families(folder, held_out=True))
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print(f"{folder}: {families[0]} families to train on, {families[1]} held out, {size:.1f} MB")


if __name__ == "__main__":
    main()

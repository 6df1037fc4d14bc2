"""The type that random pages are set in: matplotlib's own families, and free ones from Debian's packages.

``python -m synth.fonts OUT_DIR`` collects the files of the Debian families into one folder, on a
Debian machine on which `DEBIAN_PACKAGES` are installed. They are for training and evaluation, and not
shipped.
"""

from __future__ import annotations

from synth.fonts.debian import DEBIAN_PACKAGES, collect, debian_families
from synth.fonts.faces import (
    CHARACTERS,
    Face,
    FontFamily,
    face_characters,
    family_characters,
    load_face,
    matplotlib_families,
)

__all__ = [
    "CHARACTERS",
    "DEBIAN_PACKAGES",
    "Face",
    "FontFamily",
    "collect",
    "debian_families",
    "face_characters",
    "family_characters",
    "load_face",
    "matplotlib_families",
]

"""The file formats that a page may have."""

from __future__ import annotations

import itertools

FORMATS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),  # Pillow reads MPO, the pictures of some phones, through it
    "JPEG2000": (".jp2",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif",),
}
"""Pillow's names of the formats that a page may have, and their suffixes. No other one is tried: some start
programs (PostScript starts Ghostscript)."""

PAGE_SUFFIXES = frozenset((".pdf", *itertools.chain(*FORMATS.values())))
"""The suffixes of a page's file, in small letters."""

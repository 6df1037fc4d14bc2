"""Families of type, the characters they have, and their faces at a size in pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import matplotlib
from PIL import ImageFont

_ASCII = "".join(map(chr, range(0x20, 0x7F)))
#: Every character that a page may show, the space first.
CHARACTERS = (
    _ASCII
    + "€£°–—“”‘’•×÷±≤≥≠→©®™§½¼µ·²³¡¿ÄÅÆÇÉÖØÜàáâãäåæèçéêëíîïñóôõöøùúûüß"
    + "…«»„œŒÀÁÂÈÊËÍÎÏÑÓÔÚÛŸÿìò"
)

#: The files of each family's regular, bold and italic type, empty where it has none.
_FAMILIES = {
    "DejaVu Sans": ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique"),
    "DejaVu Serif": ("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic"),
    "DejaVu Sans Mono": ("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"),
    "STIX": ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic"),
    "Computer Modern": ("cmr10", "cmb10", ""),
    "Computer Modern Sans": ("cmss10", "", ""),
    "Computer Modern Typewriter": ("cmtt10", "", ""),
}
_MONO = ("DejaVu Sans Mono", "Computer Modern Typewriter")

#: Letters whose ink tells how far a face reaches above and below the baseline.
_TALL, _DEEP = "bdfhklt", "gpqy"


@dataclass(frozen=True)
class FontFamily:
    """A typeface and the files of its faces."""

    name: str
    regular: Path
    bold: Path | None
    italic: Path | None
    mono: bool

    @property
    def faces(self) -> tuple[Path, ...]:
        """The files there are, the regular one first."""
        return tuple(path for path in (self.regular, self.bold, self.italic) if path)


@dataclass(frozen=True, eq=False)
class Face:
    """A font at a size in pixels, and how far its letters reach above and below the baseline, in
    pixels.
    """

    font: ImageFont.FreeTypeFont
    size: int
    rise: int
    fall: int

    def width(self, text: str) -> float:
        """The advance of ``text`` in pixels."""
        return self.font.getlength(text)

    def ink(self, text: str) -> tuple[int, int, int, int]:
        """Left, top, right, bottom of ``text`` about its start on the baseline: ink and advance,
        pixels.
        """
        return _ink(self, text)


@lru_cache(maxsize=64)
def _ink(face: Face, text: str) -> tuple[int, int, int, int]:
    left, top, right, bottom = face.font.getbbox(text, anchor="ls")
    return math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)


@lru_cache(maxsize=768)
def load_face(path: Path, size: int) -> Face:
    """Open a font file at ``size`` pixels, with the layout engine that every Pillow has."""
    font = ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)
    rise, fall = -font.getbbox(_TALL, anchor="ls")[1], font.getbbox(_DEEP, anchor="ls")[3]
    return Face(font, size, math.ceil(rise), math.ceil(fall))


@lru_cache(maxsize=256)
def face_characters(path: Path) -> frozenset[str]:
    """Those of `CHARACTERS` that the font file has, under a glyph name that does not say otherwise.

    Computer Modern's files keep TeX's order behind a Unicode table, so ``<`` is an inverted
    exclamation mark there: the glyph's name tells.
    """
    from fontTools.agl import AGL2UV  # type: ignore[import-untyped]
    from fontTools.ttLib import TTFont  # type: ignore[import-untyped]

    with TTFont(path, lazy=True) as font:
        names = font.getBestCmap()
    return frozenset(
        character
        for character in CHARACTERS
        if (name := names.get(ord(character)))
        and AGL2UV.get(name, ord(character)) == ord(character)
    )


@lru_cache(maxsize=256)
def family_characters(family: FontFamily) -> frozenset[str]:
    """The characters that every face of the family has."""
    return frozenset.intersection(*map(face_characters, family.faces))


def matplotlib_families() -> tuple[FontFamily, ...]:
    """The families that matplotlib carries, so that they are there wherever the package runs."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return tuple(
        FontFamily(
            name, *(folder / f"{file}.ttf" if file else None for file in files), mono=name in _MONO
        )
        for name, files in _FAMILIES.items()
    )

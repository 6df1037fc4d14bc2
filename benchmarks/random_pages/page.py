"""Random pages: every one of them another text, layout, type and colour."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.random_pages import blocks, parts
from benchmarks.random_pages.faces import FontFamily, family_characters
from benchmarks.random_pages.layouts import LAYOUTS
from benchmarks.random_pages.sheet import Colour, Look, Sheet, SynthPage
from benchmarks.random_pages.words import Words
from ocr_phases.errors import OcrPhasesError

#: The kinds of page there are.
KINDS = tuple(LAYOUTS)
#: Those that text often follows, where there is room left.
_OPEN_ENDED = frozenset(("data_table", "form", "invoice", "listing"))


@dataclass(frozen=True)
class PageSettings:
    """What random pages are drawn from."""

    width: int
    """Of the page, pixels."""
    height: int
    type_px: tuple[float, float]
    """Smallest and largest size of the body type, pixels of the page; no other type is smaller."""
    max_characters: int
    """About how much text a page holds at most; markup does not count."""
    fonts: tuple[FontFamily, ...]
    """Families to draw from."""
    colour: float = 0.3
    """Share of pages with coloured text or paper."""
    kinds: tuple[str, ...] = ()
    """Kinds of page to choose from (see `KINDS`); none: all."""


def random_page(rng: random.Random, settings: PageSettings) -> SynthPage:
    """A page that follows from ``rng`` and nothing else; there is always something on it."""
    kinds = settings.kinds or KINDS
    if unknown := set(kinds) - set(KINDS):
        raise OcrPhasesError(
            f"There is no page kind {min(unknown)!r}: choose from {', '.join(KINDS)}."
        )
    kind = rng.choice(kinds)
    look = random_look(rng, settings, mono=kind == "receipt")
    allowed = family_characters(look.body) & family_characters(look.display)
    words = Words(rng, allowed, plain=rng.uniform(0.35, 0.85))
    budget = round(settings.max_characters * rng.choice((1.0, 1.0, rng.uniform(0.4, 1.0))))
    sheet = Sheet(rng, words, look, (settings.width, settings.height), budget)
    _margins(sheet)
    foot = _header_and_room_for_footer(sheet)
    LAYOUTS[kind](sheet)
    if kind in _OPEN_ENDED and rng.random() < 0.6:
        sheet.skip()
        parts.flow(sheet)
    if not sheet.regions:
        _one_word(sheet)
    if foot:
        left, right, y = foot
        sheet.left, sheet.right, sheet.y, sheet.bottom = left, right, y, settings.height
        blocks.edge_line(sheet, "footer", _edge_parts(sheet))
    return sheet.page()


def random_look(rng: random.Random, settings: PageSettings, *, mono: bool = False) -> Look:
    """Type and colours of a page; ``mono`` prefers fixed-width type."""
    fixed = [family for family in settings.fonts if family.mono]
    body = (
        rng.choice(fixed) if mono and fixed and rng.random() < 0.6 else rng.choice(settings.fonts)
    )
    display = body if rng.random() < 0.65 else rng.choice(settings.fonts)
    smallest, largest = settings.type_px
    leading = rng.choice((rng.uniform(1.0, 1.25), rng.uniform(1.15, 1.5), rng.uniform(1.4, 2.0)))
    paper, ink, accent, panel = _colours(rng) if rng.random() < settings.colour else _greys(rng)
    return Look(
        body=body,
        display=display,
        size=max(6, round(rng.uniform(smallest, largest))),
        leading=leading,
        gap=leading - 1 + rng.uniform(0.5, 1.3),
        paper=paper,
        ink=ink,
        accent=accent,
        panel=panel,
        smallest=max(6, round(smallest)),
        heading=rng.uniform(1.0, 1.3),
    )


def _greys(rng: random.Random) -> tuple[Colour, Colour, Colour, Colour]:
    """Paper, ink, accent and panel of a page without colour: white or off-white, black or nearly
    so.
    """
    light = 255 if rng.random() < 0.3 else rng.randint(228, 255)
    paper = light, max(0, light - rng.randint(0, 3)), max(0, light - rng.randint(0, 9))
    ink = _grey(0 if rng.random() < 0.3 else rng.randint(0, 90))
    panel = _grey(rng.choice((rng.randint(30, 90), rng.randint(170, 222), rng.randint(190, 222))))
    return paper, ink, ink if rng.random() < 0.7 else _grey(rng.randint(0, 100)), panel


def _colours(rng: random.Random) -> tuple[Colour, Colour, Colour, Colour]:
    """Paper, ink, accent and panel; one page in five is light on dark."""
    dark = rng.random() < 0.2
    paper = _tone(rng, 10, 80) if dark else _tone(rng, 205, 255)
    if rng.random() < 0.3 and not dark:
        paper = 255, 255, 255
    inks = (200, 255) if dark else (0, 110)
    return (
        paper,
        _tone(rng, *inks),
        _tone(rng, *inks),
        _tone(rng, 60, 110) if dark else _tone(rng, 150, 235),
    )


def _tone(rng: random.Random, low: int, high: int) -> Colour:
    return rng.randint(low, high), rng.randint(low, high), rng.randint(low, high)


def _grey(value: int) -> Colour:
    return value, value, value


def _margins(sheet: Sheet) -> None:
    """The sides may differ; never less than 2 % of the page."""
    rng = sheet.rng
    width, height = sheet.image.size
    side = rng.uniform(0.02, 0.1)
    sheet.left = round(width * side) + 1
    sheet.right = (
        width - round(width * (side if rng.random() < 0.6 else rng.uniform(0.02, 0.1))) - 1
    )
    sheet.y = round(height * rng.uniform(0.02, 0.09)) + 1
    sheet.bottom = height - round(height * rng.uniform(0.02, 0.06)) - 1


def _header_and_room_for_footer(sheet: Sheet) -> tuple[int, int, int] | None:
    """Draw a header on some pages; where (left, right, y) a footer is to go, if there will be
    one.
    """
    rng = sheet.rng
    if rng.random() < 0.2 and blocks.edge_line(sheet, "header", _edge_parts(sheet)):
        sheet.skip(0.4)
        sheet.skip(0.8)
    if rng.random() > 0.3:
        return None
    face = sheet.face("regular", 0.85)
    y = sheet.bottom - 2 * face.size
    if y < sheet.image.height * 0.6:
        return None
    sheet.bottom = y - max(6, sheet.look.size // 2)
    return sheet.left, sheet.right, y


def _edge_parts(sheet: Sheet) -> list[tuple[str, str]]:
    """What stands in a header or footer: one or two pieces."""
    rng, words = sheet.rng, sheet.words
    plain, named = str(rng.randint(1, 400)), f"Page {rng.randint(1, 40)}"
    number = rng.choice((plain, named, f"{rng.randint(1, 9)} / {rng.randint(9, 20)}"))
    if rng.random() < 0.5:
        return [(rng.choice(("left", "centre", "right")), number)]
    text = rng.choice((words.phrase(1, 3), words.drawable(words.date)))
    return [("left", text), ("right", number)] if rng.random() < 0.6 else [("left", text)]


def _one_word(sheet: Sheet) -> None:
    """What a page shows whose layout found no room: one short word."""
    sheet.y = min(sheet.y, max(0, sheet.bottom - 2 * sheet.face().size))
    sheet.bottom = sheet.image.height
    blocks.note(sheet, [sheet.words.phrase(1, 1)])

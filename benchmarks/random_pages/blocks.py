"""The blocks that pages are built of; each draws on a `Sheet` and says whether it had room."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.random_pages.faces import Face
from benchmarks.random_pages.sheet import Colour, Pixels, Setting, Sheet, enclose
from benchmarks.random_pages.vocabulary import FIELDS, HEADINGS

#: Signs of formulas as they are drawn and as LaTeX writes them.
_OPERATORS = (("+", "+"), ("-", "-"), ("×", r"\times"), ("±", r"\pm"))
_RELATIONS = (("=", "="), ("=", "="), ("≤", r"\leq"), ("≥", r"\geq"))


def setting(
    sheet: Sheet, face: Face, colour: Colour | None = None, *, align: str = "left"
) -> Setting:
    """The page's leading and ink for a face."""
    leading = max(face.rise + face.fall, round(face.size * sheet.look.leading))
    return Setting(face, colour or sheet.look.ink, leading, align)


def contrast(colour: Colour) -> Colour:
    """Black or white, whichever is seen better on ``colour``."""
    red, green, blue = colour
    return (16, 16, 20) if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else (250, 250, 250)


def title(sheet: Sheet, text: str = "", *, scale: float = 0, align: str = "") -> bool:
    """A heading of the page, in one or two lines, now and then on a band of colour."""
    rng = sheet.rng
    face = sheet.face(
        rng.choice(("bold", "bold", "regular", "italic")),
        scale or rng.uniform(1.25, 2.0),
        display=True,
    )
    align = align or rng.choice(("left", "left", "centre"))
    text = text or sheet.words.phrase(1, 5)
    lines = sheet.wrap(text, face, 2)
    leading = round(1.2 * (face.rise + face.fall))
    tight = Setting(face, sheet.look.accent, leading, align)
    return sheet.text("title", lines, tight, prefix="# ")


def sub_title(sheet: Sheet, text: str = "", number: str = "") -> bool:
    """The heading of a section; never the last thing in a column."""
    rng = sheet.rng
    face = sheet.face(
        rng.choice(("bold", "bold", "bold", "italic")), sheet.look.heading, display=True
    )
    if sheet.room < 3 * (face.rise + face.fall) + sheet.look.size:
        return False
    lines = sheet.wrap(f"{number}{text or sheet.words.heading(HEADINGS)}", face, 1)
    style = setting(sheet, face, sheet.look.accent)
    return sheet.text("sub_title", lines, style, prefix="## ")


def paragraph(sheet: Sheet, lines: int = 4, *, style: str = "regular", align: str = "left") -> bool:
    """Running text of at most so many lines."""
    rng = sheet.rng
    face = sheet.face(style)
    words = max(2, round(lines * sheet.width / face.size / 4)) if rng.random() < 0.5 else 10**6
    text = sheet.fill(face, lines, words=words)
    return sheet.text("text", text, setting(sheet, face, align=align))


def note(
    sheet: Sheet,
    texts: Sequence[str],
    face: Face | None = None,
    *,
    lines: int = 1,
    align: str = "left",
) -> bool:
    """Texts below each other, each on at most so many lines."""
    face = face or sheet.face()
    wrapped = [line for text in texts for line in sheet.wrap(text, face, lines)]
    return sheet.text("text", wrapped, setting(sheet, face, align=align))


def bullets(sheet: Sheet, items: int) -> bool:
    """A list with dots, dashes, numbers or letters; to the model it is text."""
    rng = sheet.rng
    face = sheet.face()
    sign = rng.choice(("- ", "- ", "• ", "1. ", "1) ", "a) ", "* "))
    if not sheet.words.shows(sign):
        sign = "- "
    lines = []
    left = sheet.budget
    for item in range(items):
        mark = sign.replace("1", str(item + 1)).replace("a", chr(97 + item % 26))
        words = sheet.fill(face, 1, width=sheet.width - face.width(mark), words=rng.randint(1, 6))
        if left <= 0 or not words:
            break
        lines.append(mark + words[0])
        left -= len(lines[-1])
    return sheet.text("text", lines, setting(sheet, face))


def fields(sheet: Sheet, count: int) -> bool:
    """Keys and values, aligned at a tab or not, the values sometimes on a rule; to the model it is
    text.
    """
    rng, words = sheet.rng, sheet.words
    key_face, face = sheet.face(rng.choice(("regular", "bold"))), sheet.face()
    style = setting(sheet, face)
    keys = rng.sample(FIELDS, min(count, len(FIELDS)))
    tab = max(key_face.width(f"{key}: ") for key in keys) if rng.random() < 0.5 else 0
    ruled = rng.random() < 0.35
    boxes: list[Pixels] = []
    lines: list[str] = []
    y = sheet.y + max(face.rise, key_face.rise) + face.size // 4
    for key in keys:
        if y + face.fall + face.size // 3 > sheet.bottom or sum(map(len, lines)) > sheet.budget:
            break
        value = words.drawable(
            rng.choice((words.name, words.date, words.code, words.money, words.number, words.plain))
        )
        start = sheet.left + round(max(tab, key_face.width(f"{key}: ")))
        room = sheet.right - start - 2
        if face.width(value) > room:
            continue
        left = sheet.ink(f"{key}:", sheet.left, y, setting(sheet, key_face))
        right = sheet.ink(value, start, y, style)
        if ruled:
            drop, thick = y + face.fall + 1, max(1, face.size // 20)
            sheet.draw.rectangle(
                (start, drop, sheet.right - 1, drop + thick - 1), fill=sheet.look.ink
            )
            right = enclose((right, (start, drop, sheet.right, drop + thick)))
        boxes += [left, right]
        lines.append(f"{key}: {value}")
        y += style.leading + (face.size // 4 if ruled else 0)
    if not lines:
        return False
    sheet.record("text", enclose(boxes), "\n".join(lines))
    return True


def equation(sheet: Sheet) -> bool:
    """A simple formula in the middle of the column, written in LaTeX."""
    rng = sheet.rng
    face = sheet.face(rng.choice(("italic", "regular")), rng.uniform(1.0, 1.3))
    sign = rng.choice([pair for pair in _OPERATORS if sheet.words.shows(pair[0])])
    relation = rng.choice([pair for pair in _RELATIONS if sheet.words.shows(pair[0])])
    terms = [rng.choice((rng.choice("abcdxyzknmp"), str(rng.randint(2, 99)))) for _ in range(4)]
    first = (
        f"{terms[0]} {sign[0]} {terms[1]} {relation[0]} ",
        rf"{terms[0]} {sign[1]} {terms[1]} {relation[1]} ",
    )
    if rng.random() < 0.5:
        style = Setting(face, sheet.look.ink, 0, "centre")
        shown, written = first[0] + terms[2], rf"\[ {first[1]}{terms[2]} \]"
        if face.width(shown) > sheet.width or not sheet.fits(1, style):
            return False
        box = sheet.line(shown, sheet.y + face.rise, style)
    else:
        above, below = terms[2], terms[3]
        high = face.rise + face.fall
        bar = round(max(face.width(above), face.width(below)) + face.size // 3)
        wide = face.width(first[0]) + bar
        if wide > sheet.width or sheet.room < 3 * high:
            return False
        style = Setting(face, sheet.look.ink, 0)
        x = sheet.left + round((sheet.width - wide) / 2)
        middle = sheet.y + high + 2
        spots = [sheet.ink(first[0].rstrip(), x, middle + face.rise // 2, style)]
        x += round(face.width(first[0]))
        thick = max(1, face.size // 16)
        for text, baseline in (
            (above, middle - face.fall - 1),
            (below, middle + thick + face.rise + 2),
        ):
            spots.append(sheet.ink(text, x + round((bar - face.width(text)) / 2), baseline, style))
        sheet.draw.rectangle((x, middle, x + bar - 1, middle + thick - 1), fill=style.colour)
        box = enclose((*spots, (x, middle, x + bar, middle + thick)))
        written = rf"\[ {first[1]}\frac{{{above}}}{{{below}}} \]"
    sheet.record("equation", box, written)
    return True


def caption(sheet: Sheet, label: str, lead: str, align: str = "left") -> bool:
    """The line under a picture or above a table."""
    rng = sheet.rng
    face = sheet.face(rng.choice(("regular", "regular", "italic")), rng.uniform(0.8, 1.0))
    mark = rng.choice((":", ".", " -"))
    text = f"{lead} {rng.randint(1, 20)}{mark} {sheet.words.phrase(1, 8)}"
    return sheet.text(label, sheet.wrap(text, face, 2), setting(sheet, face, align=align))


def edge_line(sheet: Sheet, label: str, parts: Sequence[tuple[str, str]]) -> bool:
    """A header's or footer's pieces, (alignment, text), on one line; each piece is a region."""
    face = sheet.face("regular", 0.85)
    style = Setting(face, sheet.look.ink, face.size)
    if sum(face.width(text) for _, text in parts) > sheet.width - 4 * face.size or not sheet.fits(
        1, style
    ):
        return False
    baseline = sheet.y + max(face.rise, *(-face.ink(text)[1] for _, text in parts))
    for align, text in parts:
        box = sheet.line(text, baseline, Setting(face, sheet.look.ink, face.size, align))
        sheet.record(label, box, text)
    return True

"""Groups of blocks that several kinds of page share."""

from __future__ import annotations

from benchmarks.random_pages import blocks, pictures, tables
from benchmarks.random_pages.sheet import Sheet


def flow(sheet: Sheet, *, longest: int = 7) -> None:
    """Fill the column with sections, paragraphs and a few other blocks."""
    rng = sheet.rng
    numbered = rng.random() < 0.4
    section = 0
    while sheet.budget > 8 and sheet.room > 2 * sheet.look.size:
        form = rng.random()
        if form < 0.22:
            section += 1
            if blocks.sub_title(sheet, number=f"{section}. " if numbered else ""):
                sheet.skip(0.7)
            drawn = blocks.paragraph(sheet, rng.randint(2, longest))
        elif form < 0.76:
            style = "italic" if rng.random() < 0.06 else "regular"
            drawn = blocks.paragraph(sheet, rng.randint(2, longest), style=style)
        elif form < 0.85:
            drawn = blocks.bullets(sheet, rng.randint(2, 5))
        elif form < 0.9:
            drawn = blocks.equation(sheet)
        elif form < 0.97:
            drawn = table_with_caption(sheet, rng.randint(2, 4), rng.randint(2, 4))
        else:
            drawn = figure(sheet)
        if not drawn and not blocks.paragraph(sheet, rng.randint(1, 3)):
            return
        sheet.skip()


def figure(sheet: Sheet, height: float = 0) -> bool:
    """A picture and, mostly, its caption below."""
    rng = sheet.rng
    high = round(height or sheet.image.height * rng.uniform(0.14, 0.3))
    room = sheet.room - 3 * sheet.look.size
    width = round(sheet.width * rng.choice((1.0, 1.0, rng.uniform(0.45, 0.9))))
    align = rng.choice(("left", "centre"))
    if not pictures.picture(sheet, rng.choice(pictures.PAINTERS), min(high, room), width, align):
        return False
    if rng.random() < 0.8:
        sheet.skip(0.5)
        lead = rng.choice(("Fig.", "Figure", "Figure", "Chart", "Photo"))
        blocks.caption(sheet, "image_caption", lead, align if rng.random() < 0.5 else "left")
    return True


def table_with_caption(sheet: Sheet, columns: int, rows: int) -> bool:
    """A table of random data, now and then with a caption above."""
    rng = sheet.rng
    if rng.random() < 0.4 and sheet.room > 6 * sheet.look.size * sheet.look.leading:
        if not blocks.caption(sheet, "table_caption", rng.choice(("Table", "Tab."))):
            return False
        sheet.skip(0.5)
    return tables.table(sheet, tables.data(sheet, columns, rows))

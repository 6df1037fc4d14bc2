"""The kinds of random page: each fills a `Sheet` from the top until room or characters are
used up.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.random_pages import blocks, parts, tables
from benchmarks.random_pages.sheet import Sheet
from benchmarks.random_pages.vocabulary import HEADINGS

Layout = Callable[[Sheet], None]


def article(sheet: Sheet) -> None:
    """A title, perhaps an author and an abstract, then sections."""
    rng = sheet.rng
    if rng.random() < 0.9 and blocks.title(sheet):
        sheet.skip()
        if rng.random() < 0.3:
            name = sheet.words.drawable(sheet.words.name)
            date = sheet.words.drawable(sheet.words.date)
            line = f"{name}, {date}"
            blocks.note(sheet, [line], sheet.face("italic"))
            sheet.skip()
    parts.flow(sheet)


def columns(sheet: Sheet) -> None:
    """A title over two columns of text, perhaps with a wide figure between."""
    rng = sheet.rng
    if rng.random() < 0.75 and blocks.title(sheet):
        sheet.skip(1.3)
    if rng.random() < 0.25 and parts.figure(sheet, sheet.image.height * 0.2):
        sheet.skip(1.3)
    top, left, right, budget = sheet.y, sheet.left, sheet.right, sheet.budget
    gutter = max(round(1.2 * sheet.look.size), sheet.image.width // 40)
    middle = left + round((right - left) * rng.choice((0.5, 0.5, 0.42, 0.58)))
    sheet.budget = budget // 2
    sheet.right = middle - gutter // 2
    parts.flow(sheet, longest=9)
    sheet.budget += budget - budget // 2
    sheet.left, sheet.right, sheet.y = middle + gutter // 2, right, top
    parts.flow(sheet, longest=9)
    sheet.left = left


def listing(sheet: Sheet) -> None:
    """Headings over lists."""
    rng = sheet.rng
    if rng.random() < 0.7 and blocks.title(sheet):
        sheet.skip()
    while sheet.budget > 8:
        if rng.random() < 0.5 and blocks.sub_title(sheet):
            sheet.skip(0.7)
        if not blocks.bullets(sheet, rng.randint(2, 9)):
            return
        sheet.skip()


def data_table(sheet: Sheet) -> None:
    """One to three tables with lines of text."""
    rng = sheet.rng
    if rng.random() < 0.6 and blocks.title(sheet):
        sheet.skip()
    for _ in range(rng.randint(1, 3)):
        if sheet.budget < 20 or not parts.table_with_caption(
            sheet, rng.randint(2, 5), rng.randint(2, 14)
        ):
            break
        sheet.skip()
        if rng.random() < 0.5 and blocks.paragraph(sheet, 2):
            sheet.skip()


def form(sheet: Sheet) -> None:
    """Keys and values, in a table or at a tab, boxes to tick, a signature."""
    rng, words = sheet.rng, sheet.words
    if blocks.title(sheet):
        sheet.skip()
    if rng.random() < 0.4 and blocks.paragraph(sheet, 2):
        sheet.skip()
    if rng.random() < 0.5:
        rows = tables.data(sheet, 2, rng.randint(3, 7))
        drawn = tables.table(sheet, rows, rules=rng.choice(("grid", "grid", "rows")))
    else:
        drawn = blocks.fields(sheet, rng.randint(2, 8))
    if drawn:
        sheet.skip()
    ticked = rng.random() < 0.5 and sheet.budget > 20
    if ticked and blocks.note(sheet, [f"{words.phrase(1, 3)}: (x) yes ( ) no"], lines=2):
        sheet.skip()


def receipt(sheet: Sheet) -> None:
    """A narrow till receipt, often in fixed-width type."""
    rng, words = sheet.rng, sheet.words
    spare = round(sheet.width * rng.uniform(0, 0.3))
    sheet.left, sheet.right = sheet.left + spare // 2, sheet.right - spare // 2
    align = rng.choice(("left", "centre"))
    name = words.phrase(1, 3)
    blocks.title(sheet, name, align=align)
    sheet.skip()
    number = f"Receipt {words.number()}"
    if rng.random() < 0.3:  # begins like a table's caption and is none
        number = f"Table {rng.randint(1, 40)}, {number.lower()}"
    blocks.note(sheet, [number, words.drawable(words.date)], align=align)
    sheet.skip()
    rows = _priced(sheet, rng.randint(2, 8), quantity=rng.random() < 0.3)
    if tables.table(sheet, rows, rules=rng.choice(("outer", "none", "none", "head")), wide=True):
        sheet.skip()
    if rng.random() < 0.7 and sheet.budget > 0:
        text = rng.choice(
            ("Thank you, come again!", "Paid by card", "Change 0.00", "All prices with tax")
        )
        if blocks.note(sheet, [text], lines=2, align=align):
            sheet.skip()


def invoice(sheet: Sheet) -> None:
    """Sender, number and date, a table of items, the sum due."""
    rng, words = sheet.rng, sheet.words
    blocks.title(sheet, f"Invoice {words.number()}" if rng.random() < 0.6 else "")
    sheet.skip()
    if rng.random() < 0.5:
        drawn = blocks.fields(sheet, rng.randint(2, 4))
    else:
        lines = [words.drawable(words.name), f"{words.phrase(1, 1)} Street {rng.randint(1, 99)}"]
        drawn = blocks.note(sheet, lines)
    if drawn:
        sheet.skip(1.2)
    rows = [["Item", "Qty", "Amount"], *_priced(sheet, rng.randint(2, 7), quantity=True)]
    rules = rng.choice(("grid", "grid", "rows", "head", "outer"))
    if tables.table(sheet, rows, rules=rules, wide=rng.random() < 0.8):
        sheet.skip()
    total, align = f"Total due: {words.money()}", rng.choice(("left", "right"))
    if blocks.note(sheet, [total], sheet.face("bold", 1.1), align=align):
        sheet.skip()
    if rng.random() < 0.6 and sheet.budget > 10 and blocks.paragraph(sheet, 2):
        sheet.skip()


def slide(sheet: Sheet) -> None:
    """A headline, points, a picture."""
    rng = sheet.rng
    blocks.title(sheet, scale=rng.uniform(1.4, 2.2))
    sheet.skip(1.4)
    first, second = rng.sample(("points", "figure", "text"), 2)
    for part in (first, second):
        if part == "points":
            drawn = blocks.bullets(sheet, rng.randint(2, 5))
        elif part == "figure":
            drawn = parts.figure(sheet, sheet.image.height * rng.uniform(0.25, 0.45))
        else:
            drawn = blocks.paragraph(sheet, 3)
        if drawn:
            sheet.skip(1.4)
    if rng.random() < 0.3 and sheet.budget > 10:
        blocks.paragraph(sheet, 1)


def report(sheet: Sheet) -> None:
    """Sections with figures and tables between the text."""
    rng = sheet.rng
    if rng.random() < 0.6 and blocks.title(sheet):
        sheet.skip()
    while sheet.budget > 8 and sheet.room > 3 * sheet.look.size:
        if blocks.sub_title(sheet, rng.choice(HEADINGS) if rng.random() < 0.5 else ""):
            sheet.skip(0.7)
        if not blocks.paragraph(sheet, rng.randint(1, 4)):
            return
        sheet.skip()
        drawn = False
        if rng.random() < 0.35:
            drawn = parts.figure(sheet)
        elif rng.random() < 0.6 and sheet.budget > 20:
            drawn = parts.table_with_caption(sheet, rng.randint(2, 4), rng.randint(2, 6))
        if drawn:
            sheet.skip()


def _priced(sheet: Sheet, count: int, *, quantity: bool) -> tables.Rows:
    words, rng = sheet.words, sheet.rng
    rows: list[list[str]] = []
    spent = 0
    for _ in range(count):
        row = [tables.cell(words.goods()), str(rng.randint(1, 60)), words.money()]
        spent += sum(map(len, row))
        if spent > sheet.budget and len(rows) > 1:
            break
        rows.append(row if quantity else [row[0], row[2]])
    if rng.random() < 0.5 and rows:
        rows[-1] = [rng.choice(("TOTAL", "Total", "Sum")), *rows[-1][1:]]
    return rows


#: Every kind of page and what draws it.
LAYOUTS: dict[str, Layout] = {
    layout.__name__: layout
    for layout in (article, columns, listing, data_table, form, receipt, invoice, slide, report)
}

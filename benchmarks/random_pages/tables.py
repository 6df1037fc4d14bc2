"""Tables: ruled throughout, in part or not at all, plain or with coloured rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.random_pages.blocks import contrast
from benchmarks.random_pages.sheet import Colour, Pixels, Setting, Sheet, enclose
from benchmarks.random_pages.vocabulary import COLUMNS

Rows = Sequence[Sequence[str]]
#: How a table may be ruled.
RULES = ("grid", "grid", "rows", "outer", "head", "none")


def table(sheet: Sheet, rows: Rows, *, rules: str = "", wide: bool | None = None) -> bool:
    """Set ``rows`` as one region; ``wide`` tables take the column's width."""
    rng = sheet.rng
    face = sheet.face()
    bold = sheet.face("bold")
    rules = rules or rng.choice(RULES)
    pad = max(3, round(face.size * rng.uniform(0.25, 0.7)))
    high = round((face.rise + face.fall) * rng.uniform(1.25, 1.9)) + 2
    rows = rows[: max(0, (sheet.room - 4) // high)]
    needs = [
        max(round(bold.width(cell)) for cell in column) + 2 * pad + 2
        for column in zip(*rows, strict=True)
    ]
    while needs and sum(needs) > sheet.width - 3:
        rows, needs = [row[:-1] for row in rows], needs[:-1]
    if len(rows) < 2 or len(needs) < 2:
        return False
    if wide or (wide is None and rng.random() < 0.6):
        spare = (sheet.width - 3 - sum(needs)) // len(needs)
        needs = [need + spare for need in needs]
    left, top = sheet.left, sheet.y
    edges = [left + sum(needs[:i]) for i in range(len(needs) + 1)]
    bottom = top + high * len(rows)
    head_bold = rng.random() < 0.6
    shaded = _shade(sheet, (left, top, edges[-1], bottom), high, len(rows))
    aligns = [rng.choice(("left", "left", "right", "centre")) for _ in needs]
    inks: list[Pixels] = [(left, top, edges[-1], bottom)] if shaded else []
    for i, row in enumerate(rows):
        type_ = bold if head_bold and i == 0 else face
        baseline = top + i * high + (high - type_.rise - type_.fall) // 2 + type_.rise
        colour = contrast(sheet.look.panel) if i in shaded else sheet.look.ink
        for j, cell in enumerate(row):
            if cell:
                x = _start(aligns[j], edges[j] + pad, edges[j + 1] - pad, round(type_.width(cell)))
                spot = sheet.ink(cell, x, baseline, Setting(type_, colour, high))
                inks.append(spot)
    thick = max(1, round(face.size * rng.uniform(0.03, 0.09)))
    for line in _rules(rules, edges, top, high, len(rows), thick):
        sheet.draw.rectangle((line[0], line[1], line[2] - 1, line[3] - 1), fill=sheet.look.ink)
        inks.append(line)
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    box = enclose(inks)
    sheet.record("table", box, f"<table>{cells}</table>")
    sheet.budget += 7 * sum(len(row) for row in rows)
    return True


def data(sheet: Sheet, columns: int, rows: int) -> Rows:
    """Random cells under a row of headings, within the page's budget of characters; a few are
    empty.
    """
    rng, words = sheet.rng, sheet.words
    makers: list[Callable[[], str]] = [
        rng.choice((words.plain, lambda: words.phrase(1, 2), words.name))
    ]
    makers += [
        rng.choice((words.number, words.number, words.money, words.code, words.date, words.plain))
        for _ in range(columns - 1)
    ]
    head = [words.phrase(1, 1) if rng.random() < 0.3 else rng.choice(COLUMNS) for _ in makers]
    filled = [head] if rng.random() < 0.85 else []
    spent = sum(map(len, head))
    blank = 0.06 if rng.random() < 0.3 else 0.0
    for _ in range(rows):
        row = [
            cell("") if j and rng.random() < blank else cell(words.drawable(make))
            for j, make in enumerate(makers)
        ]
        spent += sum(map(len, row))
        if spent > sheet.budget:
            break
        filled.append(row)
    return filled


def cell(text: str) -> str:
    """``text`` without what would be markup inside a table."""
    return "".join(character for character in text if character not in "<>&|")


def _start(align: str, left: int, right: int, width: int) -> int:
    if align == "right":
        return max(left, right - width)
    return left + (max(0, right - left - width) // 2 if align == "centre" else 0)


def _shade(sheet: Sheet, box: Pixels, high: int, rows: int) -> frozenset[int]:
    """Colour the head, or every other row; which ones."""
    form = sheet.rng.random()
    if form < 0.7:
        return frozenset()
    numbers = frozenset((0,)) if form < 0.88 else frozenset(range(0, rows, 2))
    colour: Colour = sheet.look.panel
    for number in numbers:
        top = box[1] + number * high
        sheet.draw.rectangle((box[0], top, box[2] - 1, top + high - 1), fill=colour)
    return numbers


def _rules(
    form: str, edges: Sequence[int], top: int, high: int, rows: int, thick: int
) -> list[Pixels]:
    """The lines of a table as boxes."""
    left, right, bottom = edges[0], edges[-1] + thick, top + high * rows
    across = {
        "grid": range(rows + 1),
        "rows": range(rows + 1),
        "outer": (0, rows),
        "head": (0, 1, rows),
    }.get(form, ())
    down = {"grid": edges, "outer": (edges[0], edges[-1])}.get(form, ())
    lines = [(left, top + number * high, right, top + number * high + thick) for number in across]
    return lines + [(x, top, x + thick, bottom + thick) for x in down]

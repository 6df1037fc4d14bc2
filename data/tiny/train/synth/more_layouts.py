"""More kinds of page: statements, boxed forms, code, signed letters, magazines, unreadable text."""

from __future__ import annotations

import unicodedata
from functools import cache

from synth import blocks, parts, pictures
from synth.fonts import FontFamily, load_face
from synth.fonts.faces import matplotlib_families
from synth.page import Pixels
from synth.sheet import Setting, Sheet, enclose
from synth.words import Words

_SCRIPTS = ((0x0391, 0x03C9), (0x0410, 0x044F), (0x0531, 0x0586), (0x05D0, 0x05EA), (0x0627, 0x064A),
            (0x10D0, 0x10F0), (0x1401, 0x1440))  # fmt: skip
_SUMS = ("Total", "Sum", "Balance", "Net", "VAT 19 %", "Subtotal", "Amount due", "Paid", "Rest")
_CODE = ("def {0}({1}):", "    return {0} + {2}", "    {0} = {1}({2})", "for {0} in {1}:", "if {0} == {2}:",
         "import {0}", "{0}.{1}({2})", "# {0} {1}", "    self.{0} = {1}", "int {0} = {2};", "$ {0} --{1} {2}",
         "<{0}>{1}</{0}>", "{0}: {2}", 'print("{0} {1}")', "SELECT {0} FROM {1};", "}} else {{")  # fmt: skip


def statement(sheet: Sheet) -> None:
    """Lines with sums at the right edge, whatever they are called."""
    rng, words = sheet.rng, sheet.words
    if rng.random() < 0.6 and blocks.title(sheet):
        sheet.skip()
    if rng.random() < 0.3:  # begins like a table's caption and is none
        face = sheet.face()
        lines = [
            f"Table {rng.randint(1, 40)}, {words.phrase(1, 2)} {words.number()}",
            words.drawable(words.date),
        ]
        fitted = [x for line in lines for x in sheet.wrap(line, face, 1)]
        if sheet.text("text", fitted, blocks.setting(sheet, face)):
            sheet.skip()
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.5 and blocks.paragraph(sheet, rng.randint(1, 4)):
            sheet.skip()
        wide = round(sheet.width * rng.choice((1.0, 1.0, 0.7, 0.5)))
        left = sheet.left
        sheet.left = rng.choice((left, sheet.right - wide)) if wide < sheet.width else left
        right, sheet.right = sheet.right, sheet.left + wide
        rows = [
            (rng.choice(_SUMS) if rng.random() < 0.3 else words.label(), words.money())
            for _ in range(rng.randint(1, 5))
        ]
        drawn = _sums(sheet, rows, rng.choice(("", "", ":")))
        sheet.left, sheet.right = left, right
        if not drawn:
            return
        sheet.skip()


def _sums(sheet: Sheet, rows: list[tuple[str, str]], mark: str) -> bool:
    face = sheet.face(sheet.rng.choice(("regular", "regular", "bold")))
    style = blocks.setting(sheet, face)
    inks: list[Pixels] = []
    lines: list[str] = []
    for label, amount in rows:
        room = sheet.width - face.width(label + mark) - face.width(amount) - face.size
        if room < 0 or not sheet.fits(len(lines) + 1, style):
            continue
        baseline = sheet.y + face.rise + len(lines) * style.leading
        right = round(sheet.right - face.width(amount)) - 1
        one, two = (
            sheet.ink(label + mark, sheet.left, baseline, style),
            sheet.ink(amount, right, baseline, style),
        )
        lines.append(f"{label}{mark} {amount}")
        sheet.keep_line("text", lines[-1], enclose((one, two)))
        inks += [one, two]
    if lines:
        sheet.record("text", enclose(inks), "\n".join(lines))
    return bool(lines)


def boxed_form(sheet: Sheet) -> None:
    """Frames with a small label above its value."""
    rng, words = sheet.rng, sheet.words
    if rng.random() < 0.7 and blocks.title(sheet):
        sheet.skip()
    label, value = sheet.face("regular", 0.8), sheet.face(rng.choice(("regular", "bold")))
    pad = max(3, value.size // 3)
    high = label.rise + label.fall + value.rise + value.fall + 3 * pad
    thick = max(1, value.size // 16)
    while sheet.room > high + pad and sheet.budget > 0 and rng.random() < 0.9:
        count = rng.randint(1, 3)
        wide, top = sheet.width // count, sheet.y
        for cell in range(count):
            x = sheet.left + cell * wide
            make = rng.choice((words.name, words.date, words.code, words.money, words.number, words.plain))
            texts = words.label(), words.drawable(make)
            if max(label.width(texts[0]), value.width(texts[1])) > wide - 2 * pad - 2:
                continue
            _frame(sheet, (x, top, x + wide, top + high), thick)
            baselines = top + pad + label.rise, top + high - pad - value.fall
            inks = [
                sheet.ink(text, x + pad, baseline, Setting(face, sheet.look.ink, high))
                for text, baseline, face in zip(texts, baselines, (label, value), strict=True)
            ]
            for text, box in zip(texts, inks, strict=True):
                sheet.keep_line("text", text, box)
            sheet.record("text", enclose(inks), "\n".join(texts))
        sheet.y = top + high + rng.choice((0, 0, pad))
    sheet.skip()


def _frame(sheet: Sheet, box: Pixels, thick: int) -> None:
    x1, y1, x2, y2 = box
    for edge in (
        (x1, y1, x2, y1 + thick),
        (x1, y2 - thick, x2, y2),
        (x1, y1, x1 + thick, y2),
        (x2 - thick, y1, x2, y2),
    ):
        sheet.decorate(edge, sheet.look.ink)


def code_listing(sheet: Sheet) -> None:
    """Lines of code between text."""
    rng, words = sheet.rng, sheet.words
    if rng.random() < 0.5 and blocks.title(sheet):
        sheet.skip()
    while sheet.budget > 20 and sheet.room > 4 * sheet.look.size:
        if rng.random() < 0.6 and blocks.paragraph(sheet, rng.randint(1, 4)):
            sheet.skip()
        fixed = matplotlib_families()[2] if not sheet.look.body.mono else sheet.look.body
        face = load_face(fixed.regular, sheet.look.size)
        lines = []
        for _ in range(rng.randint(2, 9)):
            line = code_line(words) if lines else code_line(words).lstrip()
            if face.width(line) < sheet.width - 2 and words.shows(line):
                lines.append(line)
        if not lines or not sheet.text("text", lines, blocks.setting(sheet, face)):
            return
        sheet.skip()


def code_line(words: Words) -> str:
    """A line of code of any language, its indentation kept."""
    rng = words.rng
    names = words.plain(), words.plain(), rng.choice((str(rng.randrange(1000)), words.plain()))
    return rng.choice(_CODE).format(*names)


def signed(sheet: Sheet) -> None:
    """Text, then signatures with names under them."""
    rng, words = sheet.rng, sheet.words
    for _ in range(rng.randint(1, 3)):
        if sheet.budget > 20 and blocks.paragraph(sheet, rng.randint(2, 6)):
            sheet.skip()
    left, right, top = sheet.left, sheet.right, sheet.y
    for place in range(rng.choice((1, 2))):
        sheet.y = top
        sheet.left = left + place * (right - left) // 2
        sheet.right = sheet.left + (right - left) * 9 // 20
        high = min(round(sheet.image.height * rng.uniform(0.08, 0.14)), sheet.room - 4)
        if not pictures.picture(sheet, pictures.signature, high, min(round(2.8 * high), sheet.width)):
            break
        sheet.skip(0.3)
        face = sheet.face("regular", rng.uniform(0.8, 1.0))
        lines = [words.drawable(words.name), *([words.phrase(1, 2)] if rng.random() < 0.5 else [])]
        sheet.text("text", [x for t in lines for x in sheet.wrap(t, face, 1)], blocks.setting(sheet, face))
    sheet.left, sheet.right = left, right


def magazine(sheet: Sheet) -> None:
    """Two columns, each with a picture and its caption."""
    rng = sheet.rng
    if rng.random() < 0.7 and blocks.title(sheet):
        sheet.skip(1.3)
    top, left, right, budget = sheet.y, sheet.left, sheet.right, sheet.budget
    gutter = max(sheet.look.size, sheet.image.width // 40)
    for place in range(2):
        sheet.y, sheet.budget = top, budget // 2
        sheet.left = left if place == 0 else (left + right + gutter) // 2
        sheet.right = (left + right - gutter) // 2 if place == 0 else right
        if rng.random() < 0.7:
            blocks.paragraph(sheet, rng.randint(2, 6))
            sheet.skip()
        if rng.random() < 0.8 and parts.figure(sheet):
            sheet.skip()
        parts.flow(sheet, longest=9)
    sheet.left = left


def unreadable(sheet: Sheet) -> None:
    """Between text, what nobody can read who learned these letters: boxes with no text are the truth."""
    rng = sheet.rng
    if rng.random() < 0.4 and blocks.title(sheet):
        sheet.skip()
    for place in range(rng.randint(2, 4)):
        if place and rng.random() < 0.6 and sheet.budget > 10 and blocks.paragraph(sheet, rng.randint(1, 4)):
            sheet.skip()
        if not rng.choice((_foreign, _foreign, _scribble, _tiny_type))(sheet):
            return
        sheet.skip(1.3)


def _blank(sheet: Sheet, boxes: list[Pixels]) -> bool:
    if boxes:
        sheet.record("text", enclose(boxes), "")
    return bool(boxes)


def _lines(sheet: Sheet, family: FontFamily, size: int, letters: str, most: int) -> bool:
    """Lines of nonsense that are drawn and not kept."""
    rng = sheet.rng
    face = load_face(family.regular, size)
    leading = round(size * sheet.look.leading)
    boxes: list[Pixels] = []
    for row in range(rng.randint(1, most)):
        baseline = sheet.y + face.rise + row * leading
        if baseline + face.fall + size // 2 > sheet.bottom:
            break
        text = " ".join("".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(60))
        room = sheet.width * rng.uniform(0.3, 1.0)
        while text and face.width(text) > room:
            text = text[: int(len(text) * min(0.95, room / face.width(text)))].rstrip()
        if not text:
            break
        x1, y1, x2, y2 = face.ink(text)
        sheet.draw.text((sheet.left - x1, baseline), text, fill=sheet.look.ink, font=face.font, anchor="ls")
        boxes.append((sheet.left, baseline + y1, sheet.left + x2 - x1, baseline + y2))
    return _blank(sheet, boxes)


def _foreign(sheet: Sheet) -> bool:
    family = matplotlib_families()[0]
    return _lines(sheet, family, sheet.look.size, _script(sheet.rng.randrange(len(_SCRIPTS))), 6)


@cache
def _script(number: int) -> str:
    first, last = _SCRIPTS[number]
    return "".join(chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c)).startswith("L"))


def _tiny_type(sheet: Sheet) -> bool:
    """Type at less than half the smallest size that pages have."""
    size = max(3, round(sheet.look.smallest * sheet.rng.uniform(0.22, 0.42)))
    return _lines(sheet, sheet.look.body, size, "abcdefghijklmnopqrstuvwxyzetaoinsr", 12)


def _scribble(sheet: Sheet) -> bool:
    """A pen's lines that rise and fall like handwriting."""
    rng = sheet.rng
    size = round(sheet.look.size * rng.uniform(1.0, 2.0))
    leading, pen = round(1.8 * size), max(1, round(size / 14))
    hue = rng.choice((sheet.look.ink, (30, 50, 140), (60, 60, 70)))
    boxes: list[Pixels] = []
    for row in range(rng.randint(1, 4)):
        baseline = sheet.y + round(1.2 * size) + row * leading
        if baseline + size > sheet.bottom:
            break
        x, end = float(sheet.left + pen), sheet.left + sheet.width * rng.uniform(0.3, 0.8)
        while x < end:
            points = []
            for stroke in range(rng.randint(4, 22)):
                reach = (
                    rng.choices((0.5, 1.0, -0.35), (7, 2, 1))[0] if stroke % 2 else rng.uniform(-0.08, 0.1)
                )
                points.append((x, baseline - reach * size + rng.uniform(-0.05, 0.05) * size))
                x += size * rng.uniform(0.06, 0.2)
            sheet.draw.line(points, fill=hue, width=pen, joint="curve")
            xs, ys = zip(*points, strict=True)
            boxes.append((int(min(xs)) - pen, int(min(ys)) - pen, int(max(xs)) + pen, int(max(ys)) + pen + 1))
            x += size * rng.uniform(0.3, 0.6)
    boxes = [(max(0, a), b, min(sheet.image.width, c), d) for a, b, c, d in boxes]
    return _blank(sheet, boxes)

"""Draws the diagrams of the docs as SVG files: ``python -m benchmarks.diagrams``.

They are pictures and not Mermaid, because Mermaid on a page of the site would fetch a script from
elsewhere. `tests/test_docs.py` fails where a file differs from what this draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ocr_phases.files import write_atomic

FOLDER = Path(__file__).parents[1] / "docs" / "diagrams"
#: All in pixels of the picture.
BOX_WIDTH = 214
LINE_HEIGHT = 17
PADDING = 9
COLUMN_GAP = 40
ROW_GAP = 34
MARGIN = 16
TITLE_HEIGHT = 30
#: Fill colours by what a box is.
FILLS = {"data": "#eef2f7", "work": "#dbeafe", "vision": "#dcfce7", "language": "#fef3c7"}


@dataclass(frozen=True)
class Box:
    """A box of a diagram.

    Attributes
    ----------
    name
        What arrows call it.
    column, row
        Its place, from 0 at the top left.
    text
        Its lines, separated by line breaks; the first one is bold.
    kind
        What it is: an entry of `FILLS`.
    """

    name: str
    column: int
    row: int
    text: str
    kind: str = "work"

    @property
    def lines(self) -> list[str]:
        """The lines of its text."""
        return self.text.split("\n")

    @property
    def height(self) -> int:
        """Its height."""
        return len(self.lines) * LINE_HEIGHT + 2 * PADDING


@dataclass(frozen=True)
class Diagram:
    """A picture of boxes with arrows between them, each ``(from, to)`` or ``(from, to, label)``."""

    title: str
    boxes: Sequence[Box]
    arrows: Sequence[tuple[str, ...]]

    def svg(self) -> str:
        """The picture, readable in light and dark themes because it has its own background."""
        rows = range(max(box.row for box in self.boxes) + 1)
        heights = [max([0, *(box.height for box in self.boxes if box.row == n)]) for n in rows]
        tops = []
        top = MARGIN + TITLE_HEIGHT
        for height in heights:
            tops.append(top)
            top += height + ROW_GAP
        columns = max(box.column for box in self.boxes) + 1
        width = 2 * MARGIN + columns * BOX_WIDTH + (columns - 1) * COLUMN_GAP
        total = top - ROW_GAP + MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" '
            f'width="{width}" height="{total}" font-family="sans-serif" font-size="12.5">',
            f"<title>{escape(self.title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#475569"/></marker>'
            "</defs>",
            f'<rect width="{width}" height="{total}" rx="6" fill="#ffffff"/>',
            f'<text x="{MARGIN}" y="{MARGIN + 13}" font-size="15" font-weight="bold" '
            f'fill="#0f172a">{escape(self.title)}</text>',
        ]
        places = {}
        for box in self.boxes:
            left = MARGIN + box.column * (BOX_WIDTH + COLUMN_GAP)
            places[box.name] = (left, tops[box.row], box.height)
        for arrow in self.arrows:
            parts.append(_arrow(places[arrow[0]], places[arrow[1]], "".join(arrow[2:])))
        for box in self.boxes:
            parts.append(_box(box, places[box.name]))
        return "\n".join([*parts, "</svg>"]) + "\n"


def _box(box: Box, place: tuple[int, int, int]) -> str:
    left, top, height = place
    parts = [
        f'<rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{height}" rx="5" '
        f'fill="{FILLS[box.kind]}" stroke="#64748b"/>'
    ]
    for number, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if number == 0 else ""
        y = top + PADDING + 13 + number * LINE_HEIGHT
        parts.append(
            f'<text x="{left + BOX_WIDTH // 2}" y="{y}" text-anchor="middle" fill="#0f172a"'
            f"{weight}>{escape(line)}</text>"
        )
    return "\n".join(parts)


def _arrow(start: tuple[int, int, int], end: tuple[int, int, int], label: str) -> str:
    """A line from one box to another: from side to side within a row, else from top to bottom."""
    left, top, height = start
    end_left, end_top, end_height = end
    if top == end_top:
        goes_right = end_left > left
        x = left + BOX_WIDTH if goes_right else left
        end_x = end_left if goes_right else end_left + BOX_WIDTH
        y = top + min(height, end_height) // 2
        end_y = y
    else:
        goes_down = end_top > top
        x = left + BOX_WIDTH // 2
        end_x = end_left + BOX_WIDTH // 2
        y = top + height if goes_down else top
        end_y = end_top if goes_down else end_top + end_height
    line = (
        f'<line x1="{x}" y1="{y}" x2="{end_x}" y2="{end_y}" stroke="#475569" '
        'stroke-width="1.4" marker-end="url(#tip)"/>'
    )
    if not label:
        return line
    # Its letters stand on a white edge, which parts them from the line.
    text = (
        f'<text x="{(x + end_x) // 2 + 5}" y="{(y + end_y) // 2 + 4}" font-size="11" '
        'fill="#334155" stroke="#ffffff" stroke-width="4" paint-order="stroke">'
        f"{escape(label)}</text>"
    )
    return f"{line}\n{text}"


PREPROCESSING = Diagram(
    "From a page to inputs",
    [
        Box("page", 0, 0, "page\nimage, or a page of a PDF", "data"),
        Box("prompt", 2, 0, "prompt\na name, or your own text", "data"),
        Box("upright", 0, 1, "load_image\nturned upright, made RGB"),
        Box("global", 0, 2, "global view\nto 640: squeezed\nabove: padded with grey 127"),
        Box(
            "crops", 1, 2, "crops (preset with crops)\n2 to 9 squares, nearest grid,\nside over 640"
        ),
        Box("split", 2, 2, "split at <image>\none <image> for each page"),
        Box("pixels", 0, 3, "normalise\n(u8 / 255 - 0.5) / 0.5,\nrounded to bfloat16"),
        Box(
            "spans",
            1,
            3,
            "image tokens\nper row of vectors + line break,\nlocal, global, separator",
        ),
        Box("tokenise", 2, 3, "tokenizer\neach piece of text"),
        Box("images", 0, 4, "pixel_values\nand pixel_values_local", "data"),
        Box("ids", 2, 4, "input_ids\nBOS, image tokens, text", "data"),
        Box("mask", 1, 4, "images_seq_mask\ntrue at image tokens", "data"),
    ],
    [
        ("page", "upright"),
        ("upright", "global"),
        ("upright", "crops"),
        ("prompt", "split"),
        ("global", "pixels"),
        ("crops", "pixels"),
        ("crops", "spans"),
        ("split", "tokenise"),
        ("pixels", "images"),
        ("tokenise", "ids"),
        ("spans", "mask"),
        ("spans", "ids"),
    ],
)

INFERENCE = Diagram(
    "One page, from file to record",
    [
        Box("prepare", 0, 0, "prepare\nload_image, tokenizer, transfer", "data"),
        Box("sam", 1, 0, "sam\nglobal view, then crops", "vision"),
        Box("clip", 2, 0, "clip\nreads SAM's output", "vision"),
        Box("fusion", 1, 1, "vision_fusion\nvectors at the image tokens", "vision"),
        Box("projector", 2, 1, "projector\nboth to 1,280 numbers", "vision"),
        Box("prefill", 1, 2, "language_model\nwhole prompt, fills the KV cache", "language"),
        Box("first", 2, 2, "lm_head, sampling\ntoken 1: TTFT ends here", "language"),
        Box(
            "step",
            1,
            3,
            "N - 1 decode steps\none token, no image arguments,\ncache grows by 1",
            "language",
        ),
        Box("next", 2, 3, "lm_head, sampling\nthe next token", "language"),
        Box("text", 1, 4, "text and regions\nup to the end token", "data"),
        Box("record", 2, 4, "record\nspans, memory, cache, checks", "data"),
    ],
    [
        ("prepare", "sam"),
        ("sam", "clip"),
        ("clip", "projector"),
        ("projector", "fusion"),
        ("fusion", "prefill"),
        ("prefill", "first"),
        ("first", "step"),
        ("step", "next"),
        ("next", "text", "end token, or the limit"),
        ("text", "record"),
    ],
)

TRAINING = Diagram(
    "Training: one step of prompt_loss",
    [
        Box("inputs", 0, 0, "inputs\nsession.prepare(page)", "data"),
        Box("forward", 1, 0, "one forward, no cache\nvision, then language model", "language"),
        Box("logits", 2, 0, "logits of all positions\nin float32", "language"),
        Box("labels", 0, 1, "labels\nprompt's ids; -100 at image\nand padding positions", "data"),
        Box("loss", 1, 1, "mean cross entropy\nposition t predicts t + 1", "language"),
        Box("backward", 2, 1, "backward\na gradient for each parameter", "work"),
    ],
    [
        ("inputs", "forward"),
        ("forward", "logits"),
        ("inputs", "labels"),
        ("logits", "loss"),
        ("labels", "loss"),
        ("loss", "backward"),
    ],
)

CALLS = Diagram(
    "Which call to use",
    [
        Box("measure", 0, 0, "Measure a page", "data"),
        Box("own", 1, 0, "Own code between phases", "data"),
        Box("model", 2, 0, "Phases as functions", "data"),
        Box("server", 3, 0, "A running server", "data"),
        Box("run", 0, 1, "session.run_inference(page)\ngenerate=True: generate()"),
        Box("steps", 1, 1, "session.prepare, run_prefill,\nrun_decode_step\nwith Timeline(device)"),
        Box("functions", 2, 1, "prefill(model, inputs, timeline)\ndecode_step, decode,\ngenerate"),
        Box("connect", 3, 1, "connect(url)\n.run_inference(page)\n.load_test(pages)"),
        Box("record", 0, 2, "PhaseRun\ntables, plots, report, save", "data"),
        Box("state", 1, 2, "DecodeState, Timeline\ntimeline.table(), .plot()", "data"),
        Box("state2", 2, 2, "DecodeState, Timeline\ntimeline.table(), .plot()", "data"),
        Box("record2", 3, 2, "PhaseRun, LoadResult\ncompare(native, server)", "data"),
    ],
    [
        ("measure", "run"),
        ("own", "steps"),
        ("model", "functions"),
        ("server", "connect"),
        ("run", "record"),
        ("steps", "state"),
        ("functions", "state2"),
        ("connect", "record2"),
    ],
)

INFER = Diagram(
    "What the vendor's infer() does, and where it is here",
    [
        Box("init", 0, 0, "S0 no initial weights\nhere: made on the device"),
        Box("prompt", 1, 0, "S1, S2 conversation, prompt\nhere: prompt="),
        Box("load", 2, 0, "S3 load images\nhere: stage load_image"),
        Box("crops", 0, 1, "S4, S7 cut and scale crops\nhere: preset gundam", "vision"),
        Box("global", 2, 1, "S5, S6 pad global view, bfloat16\nhere: preset base, large", "vision"),
        Box("stack", 1, 1, "S8, S9 stack views\nhere: pixel_values, .._local", "vision"),
        Box("split", 0, 2, "S10, S11 split and tokenise\nhere: stage tokenizer"),
        Box("spans", 1, 2, "S12, S13 image tokens, mask\nhere: images_seq_mask"),
        Box("ids", 2, 2, "S14, S15 BOS, ids, grid\nhere: input_ids, patches_grid"),
        Box("generate", 1, 3, "S16 generate, greedy\nhere: prefill, then decode", "language"),
        Box("eval", 0, 4, "S17, S18 eval_mode: text\nhere: run.text, published-eval", "data"),
        Box("compress", 1, 4, "S19 test_compress\nhere: compression_ratio", "data"),
        Box("save", 2, 4, "S20 save_results\nhere: run.report(folder)", "data"),
        Box("images", 0, 5, "S21 crops of pictures\nhere: images/K.jpg", "data"),
        Box(
            "result", 1, 5, "S22, S23 text, boxes\nhere: result.mmd,\nresult_with_boxes.jpg", "data"
        ),
        Box("geo", 2, 5, "S24 figure of geometry\nhere: geo.jpg", "data"),
    ],
    [
        ("init", "prompt"),
        ("prompt", "load"),
        ("load", "crops"),
        ("load", "global"),
        ("crops", "stack"),
        ("global", "stack"),
        ("stack", "split"),
        ("split", "spans"),
        ("spans", "ids"),
        ("ids", "generate"),
        ("generate", "eval"),
        ("generate", "compress"),
        ("generate", "save"),
        ("save", "images"),
        ("save", "result"),
        ("save", "geo"),
    ],
)

BLOCKS = Diagram(
    "Parts in the paper, stages of a record, modules of the class",
    [
        Box("b1", 0, 0, "SAM-base, window attention", "vision"),
        Box("s1", 1, 0, "stage sam", "data"),
        Box("m1", 2, 0, "model.vision_tower\n.sam_encoder"),
        Box("b2", 0, 1, "16x compressor\ntwo convolutions, stride 2", "vision"),
        Box("s2", 1, 1, "within stage sam\nno span of its own", "data"),
        Box("m2", 2, 1, "end of .sam_encoder"),
        Box("b3", 0, 2, "CLIP-large, global attention", "vision"),
        Box("s3", 1, 2, "stage clip", "data"),
        Box("m3", 2, 2, "model.vision_tower\n.vision_encoder"),
        Box("b4", 0, 3, "projector, one linear layer", "vision"),
        Box("s4", 1, 3, "stages projector,\nvision_fusion", "data"),
        Box("m4", 2, 3, "model.multi_modal_projector\n.image_newline, .view_separator"),
        Box("b5", 0, 4, "DeepSeek-3B decoder", "language"),
        Box("s5", 1, 4, "stages language_model,\nlm_head, sampling", "data"),
        Box("m5", 2, 4, "model.language_model,\nlm_head"),
    ],
    [(f"{side}{n}", f"{to}{n}") for n in range(1, 6) for side, to in (("b", "s"), ("s", "m"))]
    + [(f"b{n}", f"b{n + 1}") for n in range(1, 5)],
)

MODULES = Diagram(
    "Inside the modules of DeepSeek-OCR, one view of 1024 pixels",
    [
        Box("view", 0, 0, "view\n[1, 3, 1024, 1024]", "data"),
        Box("patch", 1, 0, "SAM: patches of 16\n64 x 64 of 768 numbers", "vision"),
        Box("sam", 2, 0, "SAM: 12 layers\nwindows, 4 layers global", "vision"),
        Box("neck", 2, 1, "SAM: neck, 2 convolutions\n[1, 1024, 16, 16]", "vision"),
        Box("clip", 1, 1, "CLIP: 24 layers\n256 vectors of 1,024", "vision"),
        Box("join", 0, 1, "both side by side\n[1, 256, 2048]", "data"),
        Box("project", 0, 2, "projector: linear\n[1, 256, 1280]", "vision"),
        Box("order", 1, 2, "line breaks, separator\n16 x 17 + 1 = 273 vectors", "vision"),
        Box("layers", 2, 2, "language model: 12 layers\n10 heads of 128, KV cache", "language"),
        Box("experts", 2, 3, "1 dense layer, 11 with experts\n6 of 64, and 2 shared", "language"),
        Box("head", 1, 3, "norm, head\n1,280 to 129,280 logits", "language"),
        Box("token", 0, 3, "token", "data"),
    ],
    [
        ("view", "patch"),
        ("patch", "sam"),
        ("sam", "neck"),
        ("neck", "clip"),
        ("clip", "join"),
        ("join", "project"),
        ("project", "order"),
        ("order", "layers"),
        ("layers", "experts"),
        ("experts", "head"),
        ("head", "token"),
    ],
)

#: All diagrams by the names of their files.
DIAGRAMS = {
    "preprocessing": PREPROCESSING,
    "inference": INFERENCE,
    "training": TRAINING,
    "calls": CALLS,
    "infer": INFER,
    "blocks": BLOCKS,
    "modules": MODULES,
}


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, diagram in DIAGRAMS.items():
        write_atomic(FOLDER / f"{name}.svg", diagram.svg().encode())


if __name__ == "__main__":
    main()

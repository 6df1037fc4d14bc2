"""Model output with regions: one recorded page, and fragments that make every kind of text."""

import json

from conftest import GOLDEN
from hypothesis import strategies as st

CASE = json.loads((GOLDEN / "artifacts.json").read_text(encoding="utf-8"))

FRAGMENTS = [
    *(
        "<|ref|>",
        "<|/ref|>",
        "<|det|>",
        "<|/det|>",
        "<|/ref|><|det|>",
        "<|grounding|>",
        "<|",
        "|>",
        "<",
        "[",
    ),
    *(
        "]",
        "[[",
        "]]",
        ",",
        "], [",
        " ",
        "\n",
        "-",
        "-7",
        "0",
        "12",
        "500",
        "999",
        "1000",
        "9" * 5000,
        "1.5",
    ),
    *("[1, 2, 3, 4]", "[[10, 20, 300, 400]]", "[[900, 800, -5, 20], [1, 2, 3]]", "image", "text"),
    "\\coloneqq",
    *(
        "<script>alert(1)</script>",
        "一二 ё 🙂",
        "\u202e",
        "\x00",
        "__import__('os')",
        "<|ref|>image<|/ref|>",
    ),
    "<|ref|>image<|/ref|><|det|>[[0, 0, 999, 999], [5, 5, 5, 90]]<|/det|>",
]
fuzzed = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=40).map("".join)


def marked(label: str, boxes: object) -> str:
    return f"<|ref|>{label}<|/ref|><|det|>{boxes}<|/det|>"

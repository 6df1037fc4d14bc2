"""A tokenizer that could fill the memory is refused before it runs; those that are published are
not.
"""

import base64
import json
import shutil

import pytest
from refusals import refused

from ocr_phases.models.growth import MOST_GROWTH, check_growth
from ocr_phases.models.tokenizers import load_tokenizer
from ocr_phases.versions import asset


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*steps, name="normalizers"):
    return {"type": "Sequence", name: list(steps)}


def kinds(*names):
    return [{"type": name} for name in names]


def table(longest):
    trie = (4).to_bytes(4, "little") + b"\0" * 4
    return {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(trie + longest + b"\0a\0").decode(),
    }


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GROWING = {
    "eight that write a letter 16 times": ("normalizer", sequence(*[replace("a", "a" * 16)] * 8)),
    "one that writes a page": ("normalizer", replace("a", "a" * (MOST_GROWTH + 1))),
    "a pattern": ("normalizer", sequence(*[replace(".", "ab", "Regex")] * 8)),
    "a pattern that matches nothing": ("normalizer", sequence(*[replace("", "x", "Regex")] * 14)),
    "an empty text": ("normalizer", sequence(*[replace("", "x")] * 14)),
    "sequences in sequences": (
        "normalizer",
        sequence(sequence(*[replace("a", "a" * 99)] * 2), replace("a", "aa")),
    ),
    "prepended": ("normalizer", sequence(*[{"type": "Prepend", "prepend": "abc"}] * 8)),
    "forms with a text between": (
        "normalizer",
        sequence(*[*kinds("NFKD"), replace(" ", "\ufdfa")] * 4),
    ),
    "tables": ("normalizer", sequence(*[table(b"x" * 200)] * 2)),
    "thousands of steps": ("normalizer", sequence(*[replace("a", "aa")] * 5_000)),
    "bytes of bytes": ("pre_tokenizer", sequence(*[BYTES] * 30, name="pretokenizers")),
    "a normalizer and bytes": ("pre_tokenizer", sequence(*[BYTES] * 7, name="pretokenizers")),
    "a decoder": ("decoder", sequence(*[replace("a", "a" * 16)] * 8, name="decoders")),
}

#: Normalizers of published tokenizers, by the family that has them.
PUBLISHED = {
    "none": None,
    "DeepSeek": sequence(),
    "Llama": sequence({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
    "Gemma": replace(" ", "▁"),
    "CLIP": sequence(*kinds("NFC"), replace(r"\s+", " ", "Regex"), *kinds("Lowercase")),
    "T5": sequence(table(b"x" * 18), replace(" {2,}", "▁", "Regex")),
    "ALBERT": sequence(
        replace("``", '"'),
        replace("''", '"'),
        *kinds("NFKD", "StripAccents", "Lowercase"),
        table(b"x" * 18),
        replace(" {2,}", " ", "Regex"),
    ),
    "BERT": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "NFC again and again": sequence(*kinds("NFC", "NFKC", "NFC", "NFKC", "NFC", "NFKC")),
    "no object": 5,
}


@pytest.fixture
def tokenizer_with(tmp_path):
    """Makes a folder with tiny's tokenizer in which one part is another."""

    def make(part, value):
        path = shutil.copy(asset("data", "tiny", "tokenizer.json"), tmp_path)
        content = json.loads((tmp_path / "tokenizer.json").read_text())
        (tmp_path / "tokenizer.json").write_text(json.dumps(content | {part: value}))
        return tmp_path / path

    return make


@pytest.mark.parametrize("name", GROWING)
def test_what_can_fill_the_memory_is_refused(name, tokenizer_with):
    part, value = GROWING[name]
    path = tokenizer_with(part, value)
    with refused():
        load_tokenizer(path.parent)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_normalizers_are_not_refused(name, tokenizer_with):
    check_growth(tokenizer_with("normalizer", PUBLISHED[name]))


def test_the_tokenizer_of_the_built_in_model_loads(tokenizer_with):
    assert load_tokenizer(tokenizer_with("normalizer", None).parent).encode("a")
    assert load_tokenizer(
        tokenizer_with("normalizer", sequence(replace("\u2063", ""))).parent
    ).encode("a")

"""`references()` finds places in the loaded source: every line it names holds what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from vendor_standin import HERE

from ocr_phases import OCRSession
from ocr_phases.models.references import COLUMNS, references
from ocr_phases.models.wiring import NATIVES

SITE = Path(transformers.__file__).parents[1]
EXPECTED = {
    *("condition of vision", "vision call: sam", "vision call: clip", "vision call: projector", "fusion"),
    *("tokenizer", "prompt assembly", "16x compression", "generate() call", "language model"),
    *("cache update", "cache class", "step preparation"),
}


@pytest.fixture(params=["golden_session", "vendor_session"])
def session(request) -> OCRSession:
    return request.getfixturevalue(request.param)


def source_line(file: str, line: int) -> str:
    path = HERE / file
    if "/" in file:
        path = (SITE if file.startswith("transformers/") else HERE.parents[1]) / file
    return path.read_text().splitlines()[line - 1]


def test_every_place_is_found_and_is_where_it_says(session):
    table = session.references()
    assert tuple(table.columns) == COLUMNS
    assert set(table["what"]) == EXPECTED
    assert table.notna().all().all()
    words = {"condition of vision": "if ", "fusion": "masked_scatter", "cache update": ".update("}
    words |= {"cache class": "def update(", "step preparation": "def prepare_inputs_for_generation"}
    words |= {"tokenizer": "def encode(", "prompt assembly": "def pack("}
    for row in table.itertuples():
        line = source_line(row.file, row.line)
        code = row.symbol.partition(": ")[2].removesuffix("...")
        called = code.partition("(")[0].rpartition(".")[2]
        assert words.get(row.what, called) in line, row
        assert not Path(row.file).is_absolute()


def test_the_condition_is_the_gate(session):
    table = session.references().set_index("what")
    condition = table.loc["condition of vision", "symbol"]
    if session.family is NATIVES["deepseek-ocr"]:
        assert "pixel_values is not None" in condition
        assert condition.startswith("UnlimitedOcrModel.forward")
        versions = table.drop("prompt assembly")["version"]
        assert set(versions) == {f"transformers {transformers.__version__}"}
        assert table.loc["generate() call", "symbol"].endswith(".forward: model.generate(**inputs)")
    else:
        assert condition.startswith("DeepseekOCRModel.forward: images is not None and seq_len != 1")
        assert table.loc["step preparation", "file"] == "modeling_deepseekocr.py"
        assert table.loc["fusion", "version"] == session.checkpoint.revision
        assert "images_seq_mask=" in table.loc["generate() call", "symbol"]
        assert table.loc["cache update", "version"] == f"transformers {transformers.__version__}"


class Part(torch.nn.Module):
    """A module without a source that says anything."""


def test_what_is_not_found_is_a_row_without_a_place():
    class DeepseekOCRForCausalLM(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.lm_head = Part(), Part()
            self.model.sam_model = self.model.vision_model = self.model.projector = Part()
            self.model.layers, self.model.norm = torch.nn.ModuleList([Part()]), Part()

    table = references(DeepseekOCRForCausalLM())
    assert set(table["what"]) == EXPECTED
    missing = table[~table["what"].isin(["cache class", "tokenizer", "prompt assembly"])]
    assert missing["file"].isna().all()
    assert missing["line"].isna().all()
    assert (missing["symbol"] == "").all()

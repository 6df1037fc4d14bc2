"""`references()` finds places in the loaded source: every line it names holds what it says."""

from pathlib import Path

import pytest
import torch
import transformers
from vendor_standin import HERE

from ocr_phases import OCRSession
from ocr_phases.models.references import COLUMNS, references

SITE = Path(transformers.__file__).parents[1]
EXPECTED = {
    *(
        "condition of vision",
        "vision call: sam",
        "vision call: clip",
        "vision call: projector",
        "fusion",
    ),
    *("tokenizer", "prompt assembly", "16x compression", "generate() call", "language model"),
    *("cache update", "cache class", "step preparation"),
}


def source_line(file: str, line: int) -> str:
    path = HERE / file
    if "/" in file:
        path = (SITE if file.startswith("transformers/") else HERE.parents[1]) / file
    return path.read_text().splitlines()[line - 1]


@pytest.mark.parametrize("which", ["golden_session", "vendor_session"])
def test_every_place_is_found_and_is_where_it_says(
    which: str, request: pytest.FixtureRequest
) -> None:
    session: OCRSession = request.getfixturevalue(which)
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
    found = table.set_index("what")
    condition, installed = (
        found.loc["condition of vision", "symbol"],
        f"transformers {transformers.__version__}",
    )
    native = session.interface.implementation == "native"
    gate = "pixel_values is not None" if native else "images is not None and seq_len != 1"
    assert gate in condition and found.loc["cache update", "version"] == installed
    assert found.loc["fusion", "version"] == (installed if native else session.checkpoint.revision)


def test_what_is_not_found_is_a_row_without_a_place() -> None:
    class DeepseekOCRForCausalLM(torch.nn.Module):
        """A model whose source says nothing."""

    model = DeepseekOCRForCausalLM()
    model.model, model.lm_head = torch.nn.Module(), torch.nn.Module()
    for part in ("sam_model", "vision_model", "projector", "norm"):
        setattr(model.model, part, torch.nn.Module())
    model.model.layers = torch.nn.ModuleList([torch.nn.Module()])
    table = references(model).set_index("what")
    assert set(table.index) == EXPECTED
    missing = table.drop(["cache class", "tokenizer", "prompt assembly"])
    assert missing[["file", "line"]].isna().all(axis=None) and (missing["symbol"] == "").all()

"""`references()` finds places in the loaded source: every line it names holds what it says."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import transformers
from torch import nn
from vendor_standin import HERE

from ocr_phases import OCRSession
from ocr_phases.models.references import COLUMNS, references

REPOSITORY = Path(__file__).parents[1]
SITE_PACKAGES = Path(transformers.__file__).parents[1]
INSTALLED = f"transformers {transformers.__version__}"
PLACES = {
    "condition of vision",
    "vision call: sam",
    "vision call: clip",
    "vision call: projector",
    "fusion",
    "tokenizer",
    "prompt assembly",
    "16x compression",
    "generate() call",
    "language model",
    "cache update",
    "cache class",
    "step preparation",
}
#: What stands in the line of a place that is no call of what the row names.
WORDS = {
    "condition of vision": "if ",
    "fusion": "masked_scatter",
    "cache update": ".update(",
    "cache class": "def update(",
    "step preparation": "def prepare_inputs_for_generation",
    "tokenizer": "def encode(",
    "prompt assembly": "def pack(",
}


def source_line(file: str, line: int) -> str:
    """A line of a file that is named as a row of the table names it."""
    if file.startswith("transformers/"):
        path = SITE_PACKAGES / file
    elif "/" in file:
        path = REPOSITORY / file
    else:  # the vendor's own code
        path = HERE / file
    return path.read_text().splitlines()[line - 1]


def called_name(symbol: str) -> str:
    """The function that the code of a row calls, as ``sam`` of ``Model.forward: self.sam(...``."""
    code = symbol.partition(": ")[2].removesuffix("...")
    return code.partition("(")[0].rpartition(".")[2]


@pytest.fixture(scope="module")
def places_of(request: pytest.FixtureRequest) -> Callable[[str], pd.DataFrame]:
    """A function that gives the places of a session by its fixture's name, found once."""

    @cache
    def find(fixture: str) -> pd.DataFrame:
        session: OCRSession = request.getfixturevalue(fixture)
        return session.references()

    return find


@pytest.mark.parametrize("fixture", ["golden_session", "vendor_session"])
def test_every_place_is_found_and_is_where_it_says(
    fixture: str, places_of: Callable[[str], pd.DataFrame]
) -> None:
    table = places_of(fixture)

    assert tuple(table.columns) == COLUMNS
    assert set(table["what"]) == PLACES
    assert table.notna().all(axis=None)
    for row in table.itertuples():
        word = WORDS.get(row.what, called_name(row.symbol))
        assert word in source_line(row.file, row.line), row
        assert not Path(row.file).is_absolute()


@pytest.mark.parametrize(
    ("fixture", "condition"),
    [
        ("golden_session", "pixel_values is not None"),
        ("vendor_session", "images is not None and seq_len != 1"),
    ],
)
def test_the_condition_of_vision_and_the_version_of_its_code_are_the_class_s_own(
    fixture: str,
    condition: str,
    places_of: Callable[[str], pd.DataFrame],
    request: pytest.FixtureRequest,
) -> None:
    table = places_of(fixture).set_index("what")

    version = INSTALLED
    if fixture == "vendor_session":
        session: OCRSession = request.getfixturevalue(fixture)
        version = session.checkpoint.revision
    assert condition in table.loc["condition of vision", "symbol"]
    assert table.loc["fusion", "version"] == version
    assert table.loc["cache update", "version"] == INSTALLED


def test_what_is_not_found_is_a_row_without_a_place() -> None:
    class DeepseekOCRForCausalLM(nn.Module):
        """A model whose source says nothing."""

    model = DeepseekOCRForCausalLM()
    model.model = nn.Module()
    model.lm_head = nn.Module()
    model.model.layers = nn.ModuleList([nn.Module()])
    for part in ("sam_model", "vision_model", "projector", "norm"):
        model.model.add_module(part, nn.Module())

    table = references(model).set_index("what")

    assert set(table.index) == PLACES
    missing = table.drop(["cache class", "tokenizer", "prompt assembly"])
    assert missing[["file", "line"]].isna().all(axis=None)
    assert (missing["symbol"] == "").all()

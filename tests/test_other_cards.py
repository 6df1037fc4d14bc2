"""What a measurement would be on cards that nobody has here: by config and datasheet alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import PAGES, RUNS
from example_run import altered
from refusals import refused

from benchmarks import card_tables
from benchmarks.documents import with_parts
from ocr_phases import PhaseRun, Settings
from ocr_phases.analyse import cost
from ocr_phases.analyse.datasheets import DATASHEETS, datasheet_named
from ocr_phases.analyse.floors import decode_floor, floor_table, sheet_ceilings
from ocr_phases.analyse.other_cards import CARD_COLUMNS, CardChoice, Work
from ocr_phases.cli import main
from ocr_phases.cli.options import card_list
from ocr_phases.errors import OcrPhasesError
from ocr_phases.measure.memory_fit import MemoryFit, fit, fit_cards

ROOT = Path(__file__).parents[1]
PAGE = PAGES / "receipt.png"
RTX_4090 = CardChoice(datasheet_named("RTX 4090"))
#: GPU records of full size of two families.
RECORDS = [
    RUNS / "h200-dummy-gundam.json.gz",
    *sorted(RUNS.glob("families/h?00-[!b]*.json.gz"))[-2:],
]


def run_settings(**changes: Any) -> Settings:
    """The settings of a model of the published sizes at gundam, with these changes."""
    return Settings(**{"model": "dummy", "preset": "gundam", **changes})


def cards_of(fit: MemoryFit) -> pd.DataFrame:
    """The table of cards that a fit has."""
    assert fit.cards is not None
    return fit.cards


# -- floors ----------------------------------------------------------------------------------------


def work_of(run: PhaseRun) -> Work:
    """What a record's measurement would be for a card that nobody has here."""
    grids = [page.grid for page in run.pages]
    prompt_tokens = run.request.prefill_len
    assert prompt_tokens is not None
    return Work(
        config=run.model.config,
        views=cost.vision_calls(run.request.preset, grids, run.model.family),
        prompt_tokens=prompt_tokens,
        new_tokens=len(decode_floor(run)) + 1,
        batch=cost.run_shape(run)["batch"],
        window=128 if run.model.family == "unlimited-ocr" else None,
    )


def test_the_floors_are_those_of_a_record_that_was_measured_there() -> None:
    """A record has the same floors once it says that it is of such a card."""
    ceilings = sheet_ceilings(RTX_4090.sheet, "bfloat16")
    assert ceilings is not None
    on_the_card = {"ceilings": None, "name": "NVIDIA GeForce RTX 4090"}
    compared = 0

    for path in RECORDS:
        run = altered(PhaseRun.load(path), device=on_the_card)
        if not has_comparable_floors(run):
            continue
        work = work_of(run)
        floors = floor_table(run).set_index("stage")["floor_ms"]
        step_floors = decode_floor(run)["floor_ms"].to_numpy()
        assert work.prefill_floor_ms(ceilings) == pytest.approx(floors["prefill"])
        assert work.step_floors_ms(ceilings) == pytest.approx(step_floors)
        compared += 1

    assert compared > 1


def has_comparable_floors(run: PhaseRun) -> bool:
    """Whether a record has steps in bfloat16 whose rows all differ, as the floors of a card take
    them to be.
    """
    shape = cost.run_shape(run)
    return (
        run.model.dtype == "bfloat16"
        and not decode_floor(run).empty
        and run.request.prefill_len is not None
        and shape["distinct_rows"] == shape["batch"]
    )


def test_a_token_takes_at_least_what_it_reads_over_the_bandwidth() -> None:
    """Counted by hand from the published sizes: 12 layers of width 1,280, 11 of them sparse."""
    attention = 12 * 4 * 1280**2
    dense = 3 * 1280 * 6848
    experts = 11 * (6 + 2) * 3 * 1280 * 896
    head = 129_280 * 1280
    cache_entries = 273 + 6 + 511
    bytes_read = 2 * (attention + dense + experts + head) + 61_440 * cache_entries

    fit = fit_cards(PAGE, run_settings(preset="base", max_new_tokens=512), [RTX_4090])

    card = cards_of(fit).iloc[0]
    token_ms = card["token_floor_ms"]
    assert token_ms == pytest.approx(bytes_read / 1008e9 * 1e3, rel=0.01)
    decode_ms = card["page_floor_ms"] - card["prefill_floor_ms"]
    assert decode_ms > 511 * 0.95 * token_ms
    assert decode_ms < 511 * token_ms  # earlier steps read a shorter cache


def test_older_cards_take_float16() -> None:
    table = cards_of(fit_cards(PAGE, run_settings(), card_list("T4=0.36,V100 SXM,L4")))

    assert table["dtype"].tolist() == ["float16", "float16", "bfloat16"]
    assert table["page_floor_ms"].notna().all()


def test_older_cards_have_no_floor_in_bfloat16() -> None:
    fit = fit_cards(PAGE, run_settings(dtype="bfloat16"), card_list("T4=0.36"))

    assert cards_of(fit)["page_floor_ms"].isna().all()
    assert "no matrix products in bfloat16" in fit.sentence


def test_only_a_card_with_a_price_has_a_price_of_its_pages() -> None:
    table = cards_of(fit_cards(PAGE, run_settings(), card_list("T4=0.36,V100 SXM,L4")))

    hours_of_1000_pages = table["page_floor_ms"][0] / 3600
    assert table["price_per_1000_pages"][0] == pytest.approx(0.36 * hours_of_1000_pages)
    assert table["price_per_1000_pages"][1:].isna().all()


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "batch", "is_fitting"),
    [
        ({}, 1, True),
        ({"dtype": "float32"}, 1, True),
        ({"dtype": "float32", "model": "dummy:layers=40"}, 1, False),
        ({}, 64, False),
        ({"preset": "tiny"}, 64, True),
        ({"strategy": "compiled", "vision": "compiled", "preset": "tiny"}, 64, False),
    ],
)
def test_it_fits_where_its_peak_is_within_what_a_program_can_use(
    changes: dict[str, object], batch: int, is_fitting: bool
) -> None:
    usable_bytes = 0.9 * 24 * 2**30

    fit = fit_cards(None, run_settings(**changes), [RTX_4090], batch=batch)

    assert (int(fit.need["peak_bytes"].max()) <= usable_bytes) is is_fitting
    assert fit.fits is is_fitting
    assert ("it fits" in fit.sentence) is is_fitting
    assert tuple(cards_of(fit).columns) == CARD_COLUMNS


def test_a_gpu_may_be_named_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    found = fit(None, run_settings(device="cuda"))

    assert isinstance(found, MemoryFit)
    assert found.fits is None
    assert "name a card" in found.sentence
    assert found.need.equals(fit_cards(None, run_settings(), [RTX_4090]).need)


# -- the verb --------------------------------------------------------------------------------------

DRY_RUN = ["profile", "--dry-run", "--model", "dummy", "--json"]


def test_the_verb_says_it_of_all_cards(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--preset", "gundam", "--cards", "all", "--price-per-hour", "2"]

    assert main([*DRY_RUN, *options]) == 0

    result = json.loads(capsys.readouterr().out)
    assert [row["card"] for row in result["cards"]] == [sheet.name for sheet in DATASHEETS]
    assert all(row["price_per_1000_pages"] > 0 for row in result["cards"])
    assert result["page"] is None
    assert f"all {len(DATASHEETS)} cards" in result["sentence"]


def test_of_several_cards_it_is_enough_that_one_is_large_enough(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--preset", "gundam", "--card", "RTX 4090, H200", "--batch", "64"]

    assert main([*DRY_RUN, *options]) == 0

    result = json.loads(capsys.readouterr().out)
    assert "1 of 2 cards, not into RTX 4090" in result["sentence"]


def test_the_verb_exits_with_1_where_it_fits_into_no_card(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--preset", "gundam", "--card", "RTX 4090", "--batch", "64"]

    assert main([*DRY_RUN, *options]) == 1

    assert json.loads(capsys.readouterr().out)["exit_reason"] == "it does not fit"


def test_cards_that_are_named_one_by_one_are_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DRY_RUN, "--card", "T4", "--card", "L4=0.80"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert [row["card"] for row in result["cards"]] == ["T4", "L4"]


@pytest.mark.parametrize(
    "card",
    ["RTX 4080", "H100", "", "L4=cheap", "L4=-1", "X (0 GB, 1 GB/s, 1 TFLOP/s)", "X (4 GB)", "X ("],
)
def test_a_wrong_card_is_refused(card: str) -> None:
    assert main(["profile", "--dry-run", "--card", card]) == 2


def test_a_card_is_refused_where_something_is_measured() -> None:
    assert main(["profile", str(PAGE), "--card", "L4"]) == 2


def test_a_card_is_refused_beside_a_device() -> None:
    assert main(["profile", "--dry-run", "--card", "L4", "--device", "cuda"]) == 2


def test_a_card_without_a_datasheet_is_refused() -> None:
    with refused():
        datasheet_named("GTX 480")


@pytest.mark.parametrize(
    ("card", "guess"),
    [
        ("rtx4090", "RTX 4090"),
        ("rtx pro6000", "RTX PRO 6000"),
        ("GTX 1650", None),  # like the names of other cards, and none of them
        ("RTX 4080", None),
        ("L5", None),
    ],
)
def test_only_a_slip_of_a_cards_name_gets_a_guess(card: str, guess: str | None) -> None:
    with pytest.raises(OcrPhasesError) as refusal:
        datasheet_named(card)

    assert ("Did you mean" in str(refusal.value)) == (guess is not None)
    assert guess is None or f"Did you mean {guess}?" in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "GTX 1650 (4 GB, 128 GB/s, 5.9 TFLOP/s)",
        "L4,GTX 1650 (4GB,128 GB/s,5.9 tflop/s)=0.10",
        "GTX 1650 (4 GB, 128 GB/s, 5.9 TFLOP/s)=0.10,L4",
    ],
)
def test_a_card_of_ones_own_is_given_with_its_figures(text: str) -> None:
    cards = {card.sheet.name: card for card in card_list(text)}

    own = cards["GTX 1650"]
    assert (own.sheet.memory, own.sheet.bandwidth, own.sheet.float16) == (4, 128, 5.9)
    assert own.price_per_hour == (0.10 if "=" in text else None)
    assert set(cards) <= {"GTX 1650", "L4"}
    assert ("L4" in cards) == ("L4" in text)


#: A program that would end with an error where the verb imports torch.
WITHOUT_TORCH = """
import sys
from ocr_phases.cli import main
code = main(["profile", "--dry-run", "--card", "RTX 4090", "--preset", "gundam"])
assert not {"torch", "transformers"} & set(sys.modules)
sys.exit(code)
"""


def test_neither_torch_nor_a_page_is_needed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=99
    )

    assert done.returncode == 0, done.stderr
    assert "tiny at gundam with an A4 page" in done.stdout
    assert "RTX 4090" in done.stdout


def test_the_tables_are_up_to_date() -> None:
    page = (ROOT / "docs" / "cards.md").read_text(encoding="utf-8")

    assert with_parts(page, card_tables.tables()) == page, "run: python -m benchmarks.card_tables"

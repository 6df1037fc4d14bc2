"""What a measurement would be on cards that nobody has here: by config and datasheet alone."""

import json
import subprocess
import sys
from pathlib import Path

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
from ocr_phases.measure.memory_fit import MemoryFit, fit, fit_cards

ROOT = Path(__file__).parents[1]
PAGE = PAGES / "receipt.png"
CARD = CardChoice(datasheet_named("RTX 4090"))


def records() -> list[Path]:
    """GPU records of full size of two families."""
    return [
        RUNS / "h200-dummy-gundam.json.gz",
        *sorted(RUNS.glob("families/h?00-[!b]*.json.gz"))[-2:],
    ]


def settings(**changes: object) -> Settings:
    return Settings(**{"model": "dummy", "preset": "gundam", **changes})


def test_the_floors_are_those_of_a_record_that_was_measured_there() -> None:
    """A record has the same floors once it says that it is of such a card."""
    compared = 0
    for path in records():
        run = altered(
            PhaseRun.load(path), device={"ceilings": None, "name": "NVIDIA GeForce RTX 4090"}
        )
        steps = decode_floor(run)
        if run.model.dtype != "bfloat16" or steps.empty or run.request.prefill_len is None:
            continue
        grids = [page.grid for page in run.pages]
        shape = cost.run_shape(run)
        if shape["distinct_rows"] != shape["batch"]:
            continue
        work = Work(
            config=run.model.config,
            views=cost.vision_calls(run.request.preset, grids, run.model.family),
            prompt_tokens=run.request.prefill_len,
            new_tokens=len(steps) + 1,
            batch=shape["batch"],
            window=128 if run.model.family == "unlimited-ocr" else None,
        )
        ceilings = sheet_ceilings(CARD.sheet, "bfloat16")
        assert ceilings is not None
        floors = floor_table(run).set_index("stage")["floor_ms"]
        assert work.prefill_floor_ms(ceilings) == pytest.approx(floors["prefill"])
        assert work.step_floors_ms(ceilings) == pytest.approx(steps["floor_ms"].to_numpy())
        compared += 1
    assert compared > 1


def test_a_token_takes_at_least_what_it_reads_over_the_bandwidth() -> None:
    """Counted by hand from the published sizes: 12 layers of width 1,280, 11 of them sparse."""
    attention = 12 * 4 * 1280**2
    dense = 3 * 1280 * 6848
    experts = 11 * (6 + 2) * 3 * 1280 * 896
    head = 129_280 * 1280
    entries = 273 + 6 + 511
    read = 2 * (attention + dense + experts + head) + 61_440 * entries
    found = fit_cards(PAGE, settings(preset="base", max_new_tokens=512), [CARD]).cards
    assert found is not None
    token_ms = found["token_floor_ms"][0]
    assert token_ms == pytest.approx(read / 1008e9 * 1e3, rel=0.01)
    page_ms = found["page_floor_ms"][0]
    assert 511 * 0.95 * token_ms < page_ms - found["prefill_floor_ms"][0] < 511 * token_ms


@pytest.mark.parametrize(
    ("changes", "batch", "fits"),
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
    changes: dict[str, object], batch: int, fits: bool
) -> None:
    found = fit_cards(None, settings(**changes), [CARD], batch=batch)
    peak = int(found.need["peak_bytes"].max())
    assert found.cards is not None
    assert found.fits is fits is (peak <= 0.9 * 24 * 2**30)
    assert ("it fits" in found.sentence) is fits
    assert tuple(found.cards.columns) == CARD_COLUMNS


def test_older_cards_take_float16_and_have_no_floor_in_bfloat16() -> None:
    cards = card_list("T4=0.36,V100 SXM,L4")
    found = fit_cards(PAGE, settings(), cards).cards
    assert found is not None
    assert found["dtype"].tolist() == ["float16", "float16", "bfloat16"]
    assert found["page_floor_ms"].notna().all()
    price = found["page_floor_ms"][0] / 3600 * 0.36  # 1,000 pages, in hours
    assert found["price_per_1000_pages"][0] == pytest.approx(price)
    assert found["price_per_1000_pages"][1:].isna().all()
    asked = fit_cards(PAGE, settings(dtype="bfloat16"), cards[:1])
    assert asked.cards is not None and asked.cards["page_floor_ms"].isna().all()
    assert "no matrix products in bfloat16" in asked.sentence


def test_a_gpu_may_be_named_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = fit(None, settings(device="cuda"))
    assert isinstance(found, MemoryFit)
    assert found.fits is None and "name a card" in found.sentence
    assert found.need.equals(fit_cards(None, settings(), [CARD]).need)


def test_the_verb_says_it_of_a_list_of_cards(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["profile", "--dry-run", "--model", "dummy", "--preset", "gundam", "--json"]
    assert main([*command, "--cards", "all", "--price-per-hour", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["card"] for row in told["cards"]] == [sheet.name for sheet in DATASHEETS]
    assert told["page"] is None and f"all {len(DATASHEETS)} cards" in told["sentence"]
    assert all(row["price_per_1000_pages"] > 0 for row in told["cards"])
    # Of several cards it is enough that one is large enough.
    assert main([*command, "--card", "RTX 4090, H200", "--batch", "64"]) == 0
    assert "1 of 2 cards, not into RTX 4090" in json.loads(capsys.readouterr().out)["sentence"]
    assert main([*command, "--card", "RTX 4090", "--batch", "64"]) == 1
    assert json.loads(capsys.readouterr().out)["exit_reason"] == "it does not fit"


def test_cards_that_are_named_one_by_one_are_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["profile", "--dry-run", "--model", "dummy", "--json"]
    assert main([*command, "--card", "T4", "--card", "L4=0.80"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["card"] for row in told["cards"]] == ["T4", "L4"]


def test_the_tables_are_up_to_date() -> None:
    page = (ROOT / "docs" / "cards.md").read_text(encoding="utf-8")
    assert with_parts(page, card_tables.tables()) == page, "run: python -m benchmarks.card_tables"


def test_wrong_cards_are_refused() -> None:
    for wrong in ("RTX 4080", "H100", "", "L4=cheap", "L4=-1"):
        assert main(["profile", "--dry-run", "--card", wrong]) == 2
    assert main(["profile", str(PAGE), "--card", "L4"]) == 2
    assert main(["profile", "--dry-run", "--card", "L4", "--device", "cuda"]) == 2
    with refused():
        datasheet_named("GTX 480")


ALONE = """
import sys
from ocr_phases.cli import main
code = main(["profile", "--dry-run", "--card", "RTX 4090", "--preset", "gundam"])
assert not {"torch", "transformers"} & set(sys.modules)
sys.exit(code)
"""


def test_neither_torch_nor_a_page_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=99)
    assert done.returncode == 0, done.stderr
    assert "tiny at gundam with an A4 page" in done.stdout and "RTX 4090" in done.stdout

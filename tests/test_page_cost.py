"""What pages cost: by hand, in a record, a sweep and an index; what is no price is refused."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from example_run import altered, make_run
from refusals import refused
from wording import says

from ocr_phases import OcrPhasesError, PhaseRun, Settings, SweepResult
from ocr_phases.analyse.cost import priced
from ocr_phases.analyse.sentences import key_metrics
from ocr_phases.cli import main
from ocr_phases.cli.options import BATCH, EVERY, SHARED
from ocr_phases.show.results_many import end_to_end_html
from ocr_phases.sweep_models import Cell
from ocr_phases.text import percent_text


def with_energy(run: PhaseRun, joules: float) -> PhaseRun:
    meter = {"seconds": 2.0, "run_joules": joules, "idle_w": 1.0}
    return altered(run, device={"conditions": {"repeats": [], "gpu": None, "energy": meter}})


@pytest.mark.parametrize("rows", [1, 3])
def test_a_thousand_pages_by_hand(rows: int) -> None:
    run = make_run(rows=rows)
    assert run["price_per_1000_pages"] is run["wh_per_1000_pages"] is None
    known = priced(with_energy(run, 36.0), 4.5)
    seconds = 1000 * run["page_ms"] / 1000 / rows  # rows side by side share their time
    assert run["pages_per_hour"] == known["pages_per_hour"] == pytest.approx(1000 / (seconds / 3600))
    assert known["price_per_1000_pages"] == pytest.approx(4.5 * seconds / 3600)
    assert known["wh_per_1000_pages"] == pytest.approx(36.0 / rows * 1000 / 3600)
    told = {label: (value, note) for label, value, note in key_metrics(known)}
    pages = "1 page" if rows == 1 else f"{rows} pages"
    assert says(told["Price of 1,000 pages"][1], "4.5 an hour", f"{pages} at a time", "gundam", "eager")
    idle = 1.0 * 2.0 / len(run.repeats) / known["energy_j"]
    assert says(told["Energy"][1], "Wh for 1,000 pages", f"idle alone takes {percent_text(idle)}")
    assert priced(known, None) is known and PhaseRun.from_json(known.to_json()).summary() == known.summary()


@pytest.mark.parametrize("price", [0, -3.5, float("nan"), float("inf"), "cheap", True])
def test_what_is_no_price_is_refused(price: Any) -> None:
    with refused():
        Settings(price_per_hour=price)
    with pytest.raises(OcrPhasesError):
        priced(make_run(), price)


def test_a_price_is_no_part_of_what_was_asked() -> None:
    assert "price_per_hour" in EVERY and "price_per_hour" not in (*BATCH, *SHARED)
    assert Cell(price_per_hour=2.0).name == Cell().name


def test_a_sweep_has_the_price_of_every_cell() -> None:
    sweep = SweepResult({"a": with_energy(make_run(), 36.0), "b": make_run(rows=2)}, pd.DataFrame())
    table = sweep.with_price(3.6).table.set_index("cell")
    for cell, pages in (("a", 1), ("b", 2)):
        hand = table.loc[cell, "page_ms"] / 1000 / pages
        assert table.loc[cell, "price_per_1000_pages"] == pytest.approx(hand)
    assert sweep.table["price_per_1000_pages"].isna().all()
    shown = end_to_end_html(table.reset_index())
    assert says(shown, "one measurement after another", "Wh", "price")
    assert "1,000 pages" in end_to_end_html(sweep.table) and "price" not in end_to_end_html(sweep.table)


def test_a_record_is_shown_at_another_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = priced(make_run(), 1.0).save(tmp_path / "run.json")
    shown = ["verify", "--record", str(record), "--price-per-hour"]
    assert main([*shown, "7", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["price_per_1000_pages"] == pytest.approx(7000 / metrics["pages_per_hour"])

"""A share that stands beside its part and its whole is that part of that whole, as all three are
printed.
"""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from conftest import RUNS
from elements import seen
from example_run import make_run
from matplotlib.text import Text
from surface import page_section
from test_one_value import NUMBER, Shown

from ocr_phases import PhaseRun
from ocr_phases.analyse.cards import key_metrics_text
from ocr_phases.analyse.sentences import headline
from ocr_phases.analyse.stages import stage_table
from ocr_phases.show.page import plot_region_types
from ocr_phases.show.run_overview import cards_section, phase_bar
from ocr_phases.show.run_times import stages_section
from ocr_phases.show.timeline_plot import plot_phase_timeline
from ocr_phases.show.vision_plot import plot_vision_stages
from ocr_phases.stages import VISION_STAGES

RECORDS = {
    str(path.relative_to(RUNS)): path
    for path in sorted(RUNS.rglob("*.json.gz"))
    if "quality" not in path.parts and not path.name.startswith("cpu-vllm")
}


def uneven(repeats, seed, **shape):
    """A record each stage of which takes up to five times as long in one repeat as in another."""
    run = make_run(repeats=repeats, **shape)
    rng = np.random.default_rng(seed)
    spans = run.spans.copy()
    for repeat in range(repeats):
        for phase in ("prepare", "prefill", "decode"):
            here = (spans["repeat"] == repeat) & (spans["phase"] == phase)
            total = 0.0
            for stage in spans.loc[here, "stage"].unique():
                if stage == phase:
                    continue
                own = here & (spans["stage"] == stage)
                spans.loc[own, ["device_ms", "host_ms"]] *= rng.uniform(1.0, 5.0)
                if phase != "decode" or stage == "decode_step":
                    total += spans.loc[own, "device_ms"].sum()
            spans.loc[here & (spans["stage"] == phase), ["device_ms", "host_ms"]] = 1.02 * total
    return replace(run, spans=spans)


NOISY = {
    f"{repeats} uneven repeats, {seed}": (repeats, seed)
    for repeats in (2, 3, 8, 12)
    for seed in (1, 2, 3)
}


@cache
def load(name):
    return uneven(*NOISY[name]) if name in NOISY else PhaseRun.load(RECORDS[name])


def agrees(share, part, whole):
    """Whether three printed numbers may be a share, a part and a whole, each within its last
    digit.
    """
    (share, near), (part, off), (whole, wide) = map(Shown.of_text, (share, part, whole))
    low, high = (part - off) / (whole + wide), (part + off) / max(whole - wide, 1e-12)
    return low - near - 1e-9 <= share <= high + near + 1e-9


def lines_of(shown):
    return seen(shown.html()).splitlines()


def drawn(figure):
    return "\n".join(text.get_text() for text in figure.findobj(Text))


every_record = pytest.mark.parametrize("name", [*RECORDS, *NOISY])


@every_record
def test_stages_beside_their_phase(name):
    run = load(name)
    whole, checked = {}, 0
    phases = ("prepare |", "prefill |", "decode |", "generate |")
    lines = [line for line in lines_of(stages_section(run)) if line.startswith(phases)]
    table = stage_table(run)
    assert len(lines) == len(table)
    for line, row in zip(lines, table.itertuples(), strict=True):
        cells = line.replace("| |", "| no view |").split(" | ")
        at = next(place for place, cell in enumerate(cells) if cell == f"{row.calls:,}")
        device, share = f"{cells[at + 1]} ms", f"{cells[-1]} %"
        if row.stage == row.phase:
            whole[row.phase] = device
        if row.phase in whole and cells[-1] != "n/a":
            assert agrees(share, device, whole[row.phase]), line
            checked += 1
    assert checked or run["prefill_ms"] is None


@every_record
def test_vision_beside_the_prefill(name):
    run = load(name)
    if run["vision_share"] is None:
        pytest.skip("nobody timed vision")
    parts = rf"({NUMBER})\s+({NUMBER}) of the prefill's ({NUMBER})"
    (card,) = re.findall(parts, key_metrics_text(run))
    assert re.findall(parts, " ".join(lines_of(cards_section(run))).replace(" | ", " ")) == [card]
    assert agrees(*card)
    assert f"vision is {card[0]} of the prefill" in headline(run)
    # The bar shows the same part, and with the rest it is the same whole.
    bar = dict(re.findall(rf"^([a-z ]+) ({NUMBER})$", seen(phase_bar(run)), re.MULTILINE))
    assert bar["vision"] == card[1]
    parts = [Shown.of_text(bar[piece]).value for piece in ("vision", "rest of the prefill")]
    whole, wide = Shown.of_text(card[2])
    assert sum(parts) == pytest.approx(whole, abs=wide + 0.005 * whole)
    # No stage of vision has a larger share than vision, and the language model none than the rest.
    table = stage_table(run).query("phase == 'prefill'").set_index("stage")["share"]
    for stage, share in table.items():
        if stage in VISION_STAGES:
            assert share <= run["vision_share"] + 1e-9
        if stage == "language_model":
            assert share <= 1.0 - run["vision_share"] + 1e-9


@every_record
def test_bars_of_the_prefill_beside_its_whole(name):
    run = load(name)
    if run["vision_share"] is None:
        pytest.skip("nobody timed vision")
    text = drawn(plot_vision_stages(run))
    share, whole = re.search(rf"Vision is ({NUMBER}) of a prefill of ({NUMBER})", text).groups()
    assert agrees(share, f"{run['vision_ms']} ms", whole)
    bars = re.findall(rf"({NUMBER})  \(({NUMBER})\)", text)
    assert len(bars) > 2 and all(agrees(of, part, whole) for part, of in bars)


@every_record
def test_the_larger_phase_beside_the_page(name):
    run = load(name)
    phase, share, page = re.search(
        rf"(Decode|prefill) is ({NUMBER}) of the ({NUMBER})", headline(run)
    ).groups()
    bar = phase_bar(run)
    keys = dict(re.findall(rf"^([a-z ]+) ({NUMBER})$", seen(bar), re.MULTILINE))
    if phase == "Decode":
        assert agrees(share, keys["decode"], page)
    # What is drawn is as long as the shares say: the bar's thousand is the page's time.
    together = sum(Shown.of_text(ms).value for ms in keys.values())
    widths = [
        float(width)
        for width in re.findall(r'<rect fill="[^"]+" x="[\d.]+" y="0" width="([\d.]+)"', bar)
    ]
    exact = run["page_ms"]
    assert sum(widths) == pytest.approx(1000 * min(1.0, together / exact), rel=0.01)
    assert ("add up to" in bar) == (abs(together - exact) > 0.005 * exact) or abs(
        together / exact - 1
    ) < 0.01


@every_record
def test_regions_beside_all_of_them(name):
    run = load(name)
    shown = page_section(run).html()
    said = re.search(rf"take ({NUMBER}) together", seen(shown))
    if said is None:
        pytest.skip("no region has a time")
    title = drawn(plot_region_types(run))
    whole = re.search(rf"({NUMBER}) in all", title)[1]
    bars = re.findall(rf"({NUMBER})  \(({NUMBER})", title)
    assert bars and all(agrees(share, part, whole) for part, share in bars)


@pytest.mark.parametrize("name", NOISY)
def test_a_timeline_says_of_which_repeat_it_is(name):
    """It is of one repeat, so its times are not the medians of the other screens."""
    run = load(name)
    titles = [text for text in drawn(plot_phase_timeline(run)).splitlines() if "repeat" in text]
    assert len(titles) == 2 and all(f"of {len(run.repeats)}" in title for title in titles)


def test_a_single_repeat_has_its_own_times():
    run = make_run(repeats=1)
    times = run.spans.query("phase == 'prefill' and stage == 'sam'")["device_ms"]
    assert run["sam_ms"] == times.sum()

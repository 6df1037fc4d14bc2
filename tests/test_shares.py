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
from matplotlib.figure import Figure
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
from ocr_phases.show.section import Section
from ocr_phases.show.timeline_plot import plot_phase_timeline
from ocr_phases.show.vision_plot import plot_vision_stages
from ocr_phases.stages import VISION_STAGES
from ocr_phases.text import percent_text

#: The shipped records whose stages were timed.
RECORDS = {
    str(path.relative_to(RUNS)): path
    for path in sorted(RUNS.rglob("*.json.gz"))
    if "quality" not in path.parts and not path.name.startswith("cpu-vllm")
}
#: Records whose repeats differ, so that a median of shares is no share of medians: the number of
#: repeats and the seed of each.
UNEVEN = {
    f"{repeats} uneven repeats, {seed}": (repeats, seed)
    for repeats in (2, 3, 8, 12)
    for seed in (1, 2, 3)
}
every_record = pytest.mark.parametrize("name", [*RECORDS, *UNEVEN])


def uneven_run(repeats: int, seed: int) -> PhaseRun:
    """A record each stage of which takes up to five times as long in one repeat as in another."""
    run = make_run(repeats=repeats, max_tokens=60)
    rng = np.random.default_rng(seed)
    spans = run.spans.copy()
    stages = spans["stage"].to_numpy()
    device_ms = spans["device_ms"].to_numpy(copy=True)
    host_ms = spans["host_ms"].to_numpy(copy=True)
    for (_, phase), rows in spans.groupby(["repeat", "phase"]).indices.items():
        phase_ms = 0.0
        for stage in np.unique(stages[rows]):
            if stage == phase:
                continue
            of_stage = rows[stages[rows] == stage]
            factor = rng.uniform(1.0, 5.0)
            device_ms[of_stage] *= factor
            host_ms[of_stage] *= factor
            # A stage of decoding lies inside a step.
            if phase != "decode" or stage == "decode_step":
                phase_ms += device_ms[of_stage].sum()
        whole = rows[stages[rows] == phase]
        device_ms[whole] = 1.02 * phase_ms
        host_ms[whole] = 1.02 * phase_ms
    spans = spans.assign(device_ms=device_ms, host_ms=host_ms)
    return replace(run, spans=spans)


@cache
def load(name: str) -> PhaseRun:
    """The record of this name."""
    if name in UNEVEN:
        repeats, seed = UNEVEN[name]
        return uneven_run(repeats, seed)
    return PhaseRun.load(RECORDS[name])


def agrees(share: str, part: str, whole: str) -> bool:
    """Whether three printed numbers may be a share, a part and a whole, each within its last
    digit.
    """
    shown_share = Shown.of_text(share)
    shown_part = Shown.of_text(part)
    shown_whole = Shown.of_text(whole)
    least_whole = max(shown_whole.value - shown_whole.half_digit, 1e-12)
    most_whole = shown_whole.value + shown_whole.half_digit
    lowest = (shown_part.value - shown_part.half_digit) / most_whole
    highest = (shown_part.value + shown_part.half_digit) / least_whole
    slack = shown_share.half_digit + 1e-9
    return lowest - slack <= shown_share.value <= highest + slack


def lines_of(section: Section) -> list[str]:
    """What a section says, line by line."""
    return seen(section.html()).splitlines()


def drawn_text(figure: Figure) -> str:
    """All texts of a figure, one below the other."""
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def labelled_numbers(html: str) -> dict[str, str]:
    """The numbers of a bar's key, by their labels."""
    return dict(re.findall(rf"^([a-z ]+) ({NUMBER})$", seen(html), re.MULTILINE))


@every_record
def test_stages_beside_their_phase(name: str) -> None:
    run = load(name)
    phases = ("prepare |", "prefill |", "decode |", "generate |")
    lines = [line for line in lines_of(stages_section(run)) if line.startswith(phases)]
    table = stage_table(run)
    assert len(lines) == len(table)

    phase_times: dict[str, str] = {}
    checked = 0
    for line, row in zip(lines, table.itertuples(), strict=True):
        cells = line.replace("| |", "| no view |").split(" | ")
        device_time = f"{cells[cells.index(f'{row.calls:,}') + 1]} ms"
        share = cells[-1]
        if row.stage == row.phase:
            phase_times[row.phase] = device_time
        if row.phase in phase_times and share != "n/a":
            assert agrees(f"{share} %", device_time, phase_times[row.phase]), line
            checked += 1
    assert checked or run["prefill_ms"] is None


def vision_run(name: str) -> PhaseRun:
    """The record of this name, for what is said of vision."""
    run = load(name)
    if run["vision_share"] is None:
        pytest.skip("nobody timed vision")
    return run


@every_record
def test_vision_beside_the_prefill(name: str) -> None:
    run = vision_run(name)
    pattern = rf"({NUMBER})\s+({NUMBER}) of the prefill's ({NUMBER})"

    (card,) = re.findall(pattern, key_metrics_text(run))
    in_notebook = " ".join(lines_of(cards_section(run))).replace(" | ", " ")

    share, part, whole = card
    assert re.findall(pattern, in_notebook) == [card]
    assert agrees(share, part, whole)
    assert f"vision is {share} of the prefill" in headline(run)

    # The bar shows the same part, and with the rest it is the same whole.
    bar = labelled_numbers(phase_bar(run))
    vision_ms = Shown.of_text(bar["vision"]).value
    rest_ms = Shown.of_text(bar["rest of the prefill"]).value
    prefill = Shown.of_text(whole)
    assert bar["vision"] == part
    assert vision_ms + rest_ms == pytest.approx(
        prefill.value, abs=prefill.half_digit + 0.005 * prefill.value
    )


@every_record
def test_no_stage_of_vision_has_more_than_vision_nor_the_language_model_more_than_the_rest(
    name: str,
) -> None:
    run = vision_run(name)
    shares = stage_table(run).query("phase == 'prefill'").set_index("stage")["share"]
    for stage, share in shares.items():
        if stage in VISION_STAGES:
            assert share <= run["vision_share"] + 1e-9
        if stage == "language_model":
            assert share <= 1.0 - run["vision_share"] + 1e-9


@every_record
def test_bars_of_the_prefill_beside_its_whole(name: str) -> None:
    run = vision_run(name)

    text = drawn_text(plot_vision_stages(run))

    title = re.search(rf"Vision is ({NUMBER}) of a prefill of ({NUMBER})", text)
    assert title is not None
    vision_share, whole = title.groups()
    assert agrees(vision_share, f"{run['vision_ms']} ms", whole)
    bars = re.findall(rf"({NUMBER})  \(({NUMBER})\)", text)
    assert len(bars) > 2
    for part, share in bars:
        assert agrees(share, part, whole)
    between_stages = bars[-1][1]
    assert between_stages == percent_text(max(0.0, 1.0 - run["stage_coverage"]))


@every_record
def test_the_larger_phase_beside_the_page(name: str) -> None:
    run = load(name)
    sentence = re.search(rf"(Decode|prefill) is ({NUMBER}) of the ({NUMBER})", headline(run))
    assert sentence is not None
    phase, share, page = sentence.groups()

    bar = phase_bar(run)

    times = labelled_numbers(bar)
    if phase == "Decode":
        assert agrees(share, times["decode"], page)
    # What is drawn is as long as the shares say: the bar's thousand is the page's time.
    parts_ms = sum(Shown.of_text(ms).value for ms in times.values())
    share_of_page = parts_ms / run["page_ms"]
    widths = re.findall(r'<rect fill="[^"]+" x="[\d.]+" y="0" width="([\d.]+)"', bar)
    drawn_width = sum(float(width) for width in widths)
    assert drawn_width == pytest.approx(1000 * min(1.0, share_of_page), rel=0.01)
    # Within a hundredth, the digits that are printed decide whether the bar says so.
    if abs(share_of_page - 1) >= 0.01:
        assert "add up to" in bar


@every_record
def test_regions_beside_all_of_them(name: str) -> None:
    run = load(name)
    html = page_section(run).html()
    if re.search(rf"take ({NUMBER}) together", seen(html)) is None:
        pytest.skip("no region has a time")

    text = drawn_text(plot_region_types(run))

    total = re.search(rf"({NUMBER}) in all", text)
    assert total is not None
    bars = re.findall(rf"({NUMBER})  \(({NUMBER})", text)
    assert bars
    for part, share in bars:
        assert agrees(share, part, total[1])


@pytest.mark.parametrize("name", [name for name, (_, seed) in UNEVEN.items() if seed == 1])
def test_a_timeline_says_of_which_repeat_it_is(name: str) -> None:
    """It is of one repeat, so its times are not the medians of the other screens."""
    run = load(name)
    lines = drawn_text(plot_phase_timeline(run)).splitlines()
    titles = [line for line in lines if "repeat" in line]
    assert len(titles) == 2
    for title in titles:
        assert f"of {len(run.repeats)}" in title


def test_a_single_repeat_has_its_own_times() -> None:
    run = make_run(repeats=1)
    sam = run.spans.query("phase == 'prefill' and stage == 'sam'")
    assert run["sam_ms"] == sam["device_ms"].sum()

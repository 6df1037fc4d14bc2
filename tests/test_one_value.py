"""One figure has one value: under one name every place shows the same number, but for its
digits.
"""

import math
import re
from collections import defaultdict
from functools import cache
from itertools import combinations
from typing import NamedTuple

import msgspec
import pytest
from elements import seen
from example_run import REGIONS, failed_cells, make_run, two_page_run, with_steps
from kernel_example import with_kernels
from matplotlib.text import Text
from test_approved import APPROVED, RECORDS

from ocr_phases import PhaseRun
from ocr_phases.analyse.cards import key_metrics_text
from ocr_phases.analyse.compared_metrics import metrics_of
from ocr_phases.analyse.sentences import headline, verdict
from ocr_phases.analyse.stages import repeat_table, stage_medians
from ocr_phases.analyse.sweep_table import sweep_table
from ocr_phases.batch.figures import page_figures
from ocr_phases.cli.results import run_result
from ocr_phases.record.schema import Truth
from ocr_phases.results.sweep import SweepResult
from ocr_phases.show.checks_section import checks_section
from ocr_phases.show.kernel_section import kernels_section
from ocr_phases.show.memory_plot import plot_memory
from ocr_phases.show.page_and_text import text_section
from ocr_phases.show.run_overview import overview_section
from ocr_phases.show.run_times import floors_section, latency_section, stages_section
from ocr_phases.show.section import Section
from ocr_phases.show.timeline_plot import plot_phase_timeline
from ocr_phases.show.vision_plot import plot_vision_stages

MADE = {
    "one-shot": lambda: make_run(generate=True),
    "two pages": two_page_run,
    "with kernels": lambda: with_kernels(make_run(cuda=True, repeats=12)),
    "with a drift": lambda: with_steps(make_run(), lambda step, _: 10.0 + 0.05 * step),
    "with a truth": lambda: make_run(rows=2).with_truth(Truth(REGIONS[1][2], (), "true.json")),
}
SECTIONS = (overview_section, stages_section, latency_section, floors_section, kernels_section)
SECTIONS += (text_section, checks_section, plot_vision_stages, plot_phase_timeline, plot_memory)
NUMBER = r"\d[\d,]*(?:\.\d+)?(?: (?:ms|s|B|kB|MB|GB)\b| %)?"
SIZES = {"s": 1e3, "%": 0.01, "kB": 1e3, "MB": 1e6, "GB": 1e9}
#: What is shown, with the name of each number in angle brackets; Q is a number without a name.
SHOWN = r"""
Inter-token latency <inter_token_ms> median; p90 <inter_token_ms_p90>, p99 <inter_token_ms_p99>
A decode step takes <inter_token_ms>, <times_floor> times its floor of <step_floor_ms>,
^vision <vision_ms>$
ecode is [\w-]+: the GPU is busy <step_busy_ms> of <profiled_step_ms> per profiled step
of the <page_ms> that
decode decode step <inter_token_ms> <step_floor_ms> <times_floor> memory bandwidth
prefill whole phase <prefill_ms> <prefill_floor_ms> Q (?:compute|memory)
at least 97 % of the prefill <stage_coverage>
Each decode step: median <inter_token_ms> of <steps_of_all_repeats> steps
decode whole phase 1 <decode_ms>
vision is 30 to 50 % of the prefill (?:in|out of) range: <vision_share>
prefill whole phase 1 <prefill_ms>
[Pp]refill is [\w-]+: the GPU is busy <prefill_busy_ms> of <prefill_ms>
prepare whole phase 1 <prepare_ms>
counts those tokens: <text_tokens>, a ratio of <compression_ratio>
Time to first token <ttft_ms> prepare
<decode_peak_bytes> in decode, <prefill_peak_bytes> in the prefill
Decode <decode_ms> <decode_steps> steps?
15 decode steps (?:in|out of) range: <prefill_in_steps> steps
generate\(\) read this page in <generate_ms>\.
<tokens> generated tokens from <valid_image_tokens> image tokens
Prefill <prefill_ms> <prefill_len> prompt tokens
Vision share <vision_share> <vision_ms> of the prefill's <prefill_ms>
a compression ratio of <generated_compression_ratio>
Vision is <vision_share> of a prefill of <prefill_ms>
50 to 200 ms (?:in|out of) range: <prefill_ms>
per token (?:in|out of) range: <inter_token_ms>
as long as <prefill_in_steps> decode steps\.
a step keeps the GPU busy for <step_busy_ms>
generate\(\) <generate_ms> <tokens> tokens
decode step, <times_floor> times its floor
KV cache <kv_cache_bytes> \S+ \S+ per token
prefill <prefill_ms>, decode <decode_ms>>
^decode <decode_ms>$
vision is <vision_share> of the prefill
shortest decode step is <inter_token_ms>
^prepare <prepare_ms>$
became <growth> (?:slower|faster) over
Tokens per second <tokens_per_s> mean
Peak memory <peak_bytes> in
per cached token, -?<growth> of a step
"""
LINES = re.sub(r"<(\w+)>", r"(?P<\1>Q)", SHOWN.strip()).replace("Q", NUMBER)
PATTERNS = [re.compile(line, re.MULTILINE) for line in LINES.splitlines()]


def texts_of(run):
    """All that is shown of a record, as plain text."""
    yield from (repr(run), key_metrics_text(run), headline(run), verdict(run))
    yield SweepResult({"a": run}, failed_cells()).verdict
    for section in SECTIONS:
        for part in Section(section(run)).parts:
            yield text_of_part(part)


def text_of_part(part):
    """The text of a section's part: of a fragment of HTML or of a figure."""
    if isinstance(part, str):
        return seen(part)
    texts = part.findobj(Text)
    if not texts:
        return seen(part)
    return "\n".join(text.get_text() for text in texts)


def exact_figures(run):
    """The figures of a record's tables and of ``--json``, each with its name."""
    yield from run_result(run)["metrics"].items()
    yield from sweep_table({"a": run}).iloc[0].items()
    yield from msgspec.structs.asdict(page_figures(run, "job", "page", "digest").row).items()
    yield from metrics_of(run)["value"].items()
    yield from repeat_table(run).median().drop("steps").items()
    for key, ms in stage_medians(run).items():
        yield "/".join(filter(None, key)), ms


class Shown(NamedTuple):
    """A number in its base unit, and half of what its last digit is worth."""

    value: float
    half_digit: float

    @classmethod
    def of_text(cls, text):
        digits, _, unit = text.replace(",", "").partition(" ")
        _, _, decimals = digits.partition(".")
        size = SIZES.get(unit, 1.0)
        return cls(float(digits) * size, 0.5 * size * 10.0 ** -len(decimals))

    @classmethod
    def exact(cls, value):
        return cls(float(value), 1e-9 * abs(value))

    def agrees_with(self, other):
        """Whether both may be one number; of equally many digits all have to be equal."""
        allowed = 1e-9 * abs(self.value)
        if self.half_digit != other.half_digit:
            allowed += self.half_digit + other.half_digit
        return abs(self.value - other.value) <= allowed


@cache
def record_and_text(name):
    """A record, and all that is shown of it, white space and borders collapsed.

    Of a record with approved outputs these are what is shown.
    """
    if name in RECORDS:
        run = PhaseRun.load(RECORDS[name])
        texts = [path.read_text("utf-8") for path in (APPROVED / name).glob("*.txt")]
    else:
        run = MADE[name]()
        texts = texts_of(run)
    return run, re.sub(r"[ |]+", " ", "\n".join(texts))


@pytest.mark.parametrize("name", [*RECORDS, *MADE])
def test_a_name_has_one_value(name):
    run, text = record_and_text(name)
    found = defaultdict(set)
    for figure, value in exact_figures(run):
        if isinstance(value, int | float) and not math.isnan(value):
            found[figure].add(Shown.exact(value))
    for pattern in PATTERNS:
        for match in pattern.finditer(text):
            for figure, shown in match.groupdict().items():
                found[figure].add(Shown.of_text(shown))
    assert len(found) > 20
    for figure, numbers in found.items():
        for one, other in combinations(numbers, 2):
            assert one.agrees_with(other), figure


def test_every_pattern_is_seen():
    shown = "\n".join(record_and_text(name)[1] for name in [*RECORDS, *MADE])
    for pattern in PATTERNS:
        assert pattern.search(shown), pattern.pattern

"""One record as tables: phases, stages, decode steps and tokens, each with its time.

A time is the median over repeats, of a decode step over all steps of all repeats, as in
`ocr_phases.analyse.figures.summary`; medians need not add up. The time of a stage is its share of
its phase: the median of the repeats' shares, of the phase's median
(`ocr_phases.analyse.statistics.part_ms`). A spread is p10 to p90 of ten values or more, of fewer
the least and the greatest. Everything here copes with every shape of record: without crops, without
decode steps, of one repeat, of a batch, or of a one-shot ``generate`` run that has no phases to
tell apart. What a region costs is in `ocr_phases.analyse.regions`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pandas as pd

from ocr_phases.analyse.grounding import Grounding, parse_grounding, token_regions
from ocr_phases.analyse.statistics import part_ms
from ocr_phases.record import PHASES, Record, is_whole_phase
from ocr_phases.record.parts import KernelsPart, columns_of
from ocr_phases.stages import ROLES, VISION_ROLES, Role, Stage, stage_of, stage_place

STAGE_KEYS = ("phase", "stage", "view")
_TIMES = ("device_ms", "device_ms_p10", "device_ms_p90", "host_ms")
STAGE_COLUMNS = (*STAGE_KEYS, "calls", *_TIMES, "share")
STEP_COLUMNS = ("step", "index", "text", "cache_len", *_TIMES, "outlier")

#: Two stages overlap where they share more than this part of the one's time: a device's events are
#: rounded.
_TOUCHING = 0.01

#: A token's own probability (0 to 1) and margin (of logits).
PROBABILITY_COLUMNS = ("probability", "margin")
TOKEN_COLUMNS = (
    "index",
    "id",
    "text",
    "source",
    "step",
    "cache_len",
    "region",
    "device_ms",
    "device_ms_p10",
    "device_ms_p90",
    "host_ms",
    *PROBABILITY_COLUMNS,
)

#: A step is an outlier above the median by this many median absolute deviations and by this factor,
OUTLIER_DEVIATIONS = 5.0
OUTLIER_FACTOR = 1.5
#: or, in any single repeat, by this factor.
SPIKE_FACTOR = 10.0

#: From so many values on a spread is p10 to p90.
QUANTILES_FROM = 10

# Sums of up to 2^33 ms of multiples of 2^-20 ms fit into a double without rounding.
_SUMMABLE = 2.0**20
_TREND_STEPS = 16
_PAIRS = 400
_NORMAL = 1.96  # 95 % of a normal distribution lie within so many standard deviations

_Function = TypeVar("_Function", bound=Callable[..., Any])


def cached(make: _Function) -> _Function:
    """Save what ``make(run, ...)`` gives with the record, which never changes; each caller has a
    copy.
    """

    @wraps(make)
    def make_once(run: Record, *args: Any, **keywords: Any) -> Any:
        store = run.__dict__.setdefault("_cached", {})
        key = (make, args, *sorted(keywords.items()))
        if key not in store:
            store[key] = make(run, *args, **keywords)
        return copy.copy(store[key])

    return cast(_Function, make_once)


@cached
def grounding_of(run: Record, row: int = 0) -> Grounding:
    """The regions of a row's text; none without a text."""
    return parse_grounding(run.results[row].text or "", run.model.family)


def spread_names(count: int) -> tuple[str, str]:
    """What the two ends of a spread of so many values are called."""
    return ("p10", "p90") if count >= QUANTILES_FROM else ("min", "max")


# -- which stages a record has --------------------------------------------------------------------


@cached
def stages_of(run: Record) -> dict[str, Stage]:
    """The stages that a record has spans of, by name, in the order that a page goes through them.

    What a stage is, the record says itself (``run.model.stages``), else the table of
    `ocr_phases.stages`. A stage of which neither says anything has the role ``other``.
    """
    declared: dict[str, Role] = {}
    for part in run.model.stages or ():
        if part.role in ROLES:
            declared[part.name] = cast(Role, part.role)
    stages = [stage_of(name, declared.get(name)) for name in run.spans["stage"].unique()]
    parts = [stage for stage in stages if stage.role != "whole"]
    return {stage.name: stage for stage in sorted(parts, key=stage_place)}


def vision_stages(run: Record) -> tuple[str, ...]:
    """The stages whose times add up to the time of vision, in the order of a page."""
    nested = _nested_stages(run)
    stages = stages_of(run).values()
    return tuple(
        stage.name for stage in stages if stage.role in VISION_ROLES and stage.name not in nested
    )


def prefill_stages(run: Record) -> tuple[str, ...]:
    """The stages that stage coverage adds up and divides by the whole prefill.

    A stage that nobody declared is among them, unless it overlaps another one in time.
    """
    in_prefill = set(run.spans.loc[run.spans["phase"] == "prefill", "stage"])
    uncounted = {*_nested_stages(run), *overlapping_stages(run)}
    return tuple(name for name in stages_of(run) if name in in_prefill and name not in uncounted)


def undeclared_stages(run: Record) -> tuple[str, ...]:
    """The stages of which nobody has said what they do: they are in no sum but stage coverage."""
    return tuple(stage.name for stage in stages_of(run).values() if stage.role == "other")


def _nested_stages(run: Record) -> set[str]:
    """The stages that the record says to run inside another one."""
    return {part.name for part in run.model.stages or () if part.inside is not None}


@cached
def overlapping_stages(run: Record) -> tuple[str, ...]:
    """The undeclared stages of the prefill that run while another stage does, in any repeat."""
    overlapping = []
    names = [*stages_of(run)]
    spans = run.spans[(run.spans["phase"] == "prefill") & run.spans["stage"].isin(names)]
    starts = spans["device_start_ms"].to_numpy()
    ends = starts + spans["device_ms"].to_numpy()
    repeats = spans["repeat"].to_numpy()
    for name in undeclared_stages(run):
        own = (spans["stage"] == name).to_numpy()
        for repeat, start, end in zip(repeats[own], starts[own], ends[own], strict=True):
            shared = np.minimum(ends, end) - np.maximum(starts, start)
            beside = ~own & (repeats == repeat)
            if bool((shared[beside] > _TOUCHING * (end - start)).any()):
                overlapping.append(name)
                break
    return tuple(overlapping)


# -- stages and repeats ----------------------------------------------------------------------------


def _repeats(run: Record, spans: pd.DataFrame, keys: Sequence[str], clock: str) -> pd.DataFrame:
    """The sum of some spans in ms, NaN for none: a row a value of the keys, a column a repeat."""
    sums = spans.groupby([*keys, "repeat"], sort=False)[clock].sum().unstack("repeat")
    return sums.reindex(columns=run.repeats).astype("float64")


@cached
def stage_repeats(run: Record, clock: str = "device_ms") -> pd.DataFrame:
    """The sum of each stage's calls in ms, zero for none: a row a phase, stage, view, a column a
    repeat.
    """
    return _repeats(run, run.spans, STAGE_KEYS, clock).fillna(0.0)


def _parts(sums: pd.DataFrame) -> pd.Series:
    """The time of each row of `stage_repeats` as `part_ms` of its phase's whole."""
    wholes = sums[is_whole_phase(sums.index.to_frame(index=False)).to_numpy()]
    whole_of = dict(zip(wholes.index.get_level_values("phase"), wholes.to_numpy(), strict=True))
    medians = sums.median(axis="columns")
    times = []
    phases = sums.index.get_level_values("phase")
    for phase, repeats, median in zip(phases, sums.to_numpy(), medians, strict=True):
        if phase in whole_of:
            times.append(part_ms(repeats, whole_of[phase]))
        else:
            times.append(median)
    return pd.Series(times, sums.index, dtype="float64")


@cached
def stage_medians(run: Record, steps: Collection[int] | None = None) -> pd.Series:
    """``device_ms``, the time of each stage by phase, stage and view: its median share of its
    phase.

    Of decode's stages it is the time of one step, the median over all steps of all repeats, or over
    the numbers ``steps`` of them. The loop around the steps has none.
    """
    decode = run.spans[(run.spans["phase"] == "decode") & run.spans["step"].notna()]
    if steps is not None:
        decode = decode[decode["step"].isin(steps)]
    wholes = _parts(stage_repeats(run)).drop("decode", level="phase", errors="ignore")
    return pd.concat([wholes, decode.groupby([*STAGE_KEYS])["device_ms"].median()]).rename(
        "device_ms"
    )


def replayed_stage_ms(run: Record) -> pd.Series:
    """The time in ms of each stage within a replayed decode step, by phase, stage and view.

    It is from the kernel view: a graph has no spans inside. Empty where that did not find stages.
    """
    if not isinstance(run.kernels, KernelsPart):
        return _no_stages()
    table = pd.DataFrame(columns_of(run.kernels.stages))
    if "replay_ms" not in table:
        return _no_stages()
    table = table[table["replay_ms"] > 0].set_index([*STAGE_KEYS])
    return table["replay_ms"] / len(run.kernels.decode_steps.step)


def _no_stages() -> pd.Series:
    index = pd.MultiIndex.from_tuples([], names=[*STAGE_KEYS])
    return pd.Series(index=index, dtype="float64")


def _over_repeats(device: pd.DataFrame, host: pd.DataFrame) -> pd.DataFrame:
    """Medians of each row's repeats on both clocks, and the ends of the spread (`spread_names`)."""
    shares = [0.1, 0.9] if len(device.columns) >= QUANTILES_FROM else [0.0, 1.0]
    ends = device.quantile(shares, axis="columns").to_numpy()
    times = {
        "device_ms": device.median(axis="columns"),
        "device_ms_p10": ends[0],
        "device_ms_p90": ends[1],
        "host_ms": host.median(axis="columns"),
    }
    return pd.DataFrame(times, device.index, dtype="float64")


@cached
def stage_table(run: Record) -> pd.DataFrame:
    """One row a phase, stage and view, columns `STAGE_COLUMNS`; a phase's whole comes first.

    Times are ms of all ``calls`` in a repeat; ``device_ms_p10`` and ``_p90`` are the ends of the
    spread of the repeats' times (`spread_names`). ``share`` is the median of the repeats' shares of
    the phase, and ``device_ms`` and ``host_ms`` are that share, on either clock, of the phase's
    median. In decode ``language_model``, ``lm_head`` and ``sampling`` lie inside ``decode_step``.
    """
    spans = run.spans.groupby([*STAGE_KEYS], sort=False)
    device = stage_repeats(run)
    host = stage_repeats(run, "host_ms")
    table = _over_repeats(device, host).assign(device_ms=_parts(device), host_ms=_parts(host))
    table["calls"] = spans.size() // len(run.repeats)
    table["start"] = spans["host_start_ms"].min()
    table = table.reset_index()
    is_whole = is_whole_phase(table)
    table["phase_number"] = table["phase"].map(PHASES.index)
    table["is_part"] = ~is_whole
    whole = table["phase"].map(table[is_whole].set_index("phase")["device_ms"])
    table["share"] = (table["device_ms"] / whole).where(whole > 0)
    table = table.sort_values("device_ms", ascending=False)
    table = table.sort_values(["phase_number", "is_part", "start"], kind="stable")
    return table[list(STAGE_COLUMNS)].reset_index(drop=True)


@cached
def repeat_table(run: Record) -> pd.DataFrame:
    """One row a repeat: its number from 0 and times in ms on the device clock, NaN for a phase it
    lacks.

    Columns ``repeat``, ``prepare_ms``, ``prefill_ms``, ``ttft_ms`` (prepare plus prefill, of a
    server the wait for the first token), ``decode_ms``, ``generate_ms``, ``steps`` (of decode) and
    ``tokens_per_s``: `Record.decoded_tokens` over the whole decode phase. A repeat without steps
    has no rate, because where all tokens came together nobody knows when decoding began; nor has
    one whose number of tokens a server did not tell.
    """
    index = pd.Index(run.repeats, name="repeat")
    table = pd.DataFrame(
        {f"{phase}_ms": run.repeat_ms(phase, phase) for phase in PHASES}, index=index
    )
    table = table.where(table > 0)
    waited = pd.Series(run.phase_ms("prefill"), index)
    table.insert(2, "ttft_ms", table["prepare_ms"].fillna(0.0) + waited.where(waited > 0))
    table["steps"] = step_repeats(run).count()
    rates = run.decoded_tokens / table["decode_ms"] * 1000.0
    table["tokens_per_s"] = rates.where((table["steps"] > 0) & run.knows_tokens)
    return table.reset_index()


def end_to_end_ms(run: Record) -> np.ndarray:
    """Each repeat from the page's file to the last token, ms, float64 [repeats]; a batch's rows
    together.
    """
    return np.sum([run.phase_ms(phase) for phase in PHASES], axis=0)


@cached
def typical_repeat(run: Record) -> int:
    """The number of the repeat whose time to first token and decode lie nearest to their medians.

    A timeline shows this one. Nearest by the sum of both relative distances, so that a long decode
    does not choose alone; of equally near ones the first. A ``generate()`` run is judged by its
    only phase.
    """
    table = repeat_table(run)[["ttft_ms", "decode_ms", "generate_ms"]]
    distance = (table / table.median() - 1.0).abs().sum(axis="columns")
    return run.repeats[int(distance.to_numpy().argmin())]


# -- decode, step by step --------------------------------------------------------------------------


def attended(run: Record, lengths: np.ndarray) -> np.ndarray:
    """The cache entries that a step sees after so many tokens: all, or those of the prompt and the
    window.
    """
    window = run.cache.window
    prompt_tokens = run.request.prefill_len
    if window is None or prompt_tokens is None:  # only a server does not tell, and it has no window
        return lengths
    return np.minimum(lengths, prompt_tokens + window)


@cached
def step_repeats(run: Record, clock: str = "device_ms") -> pd.DataFrame:
    """The time of each decode step in ms, NaN where it did not run: a row a step, a column a
    repeat.
    """
    spans = run.spans[run.spans["stage"] == "decode_step"].astype({"step": "int64"})
    return _repeats(run, spans, ["step"], clock).sort_index()


def step_ms(run: Record) -> np.ndarray:
    """Each repeat's median decode step, ms, float64 [repeats]; NaN for a repeat without steps."""
    return step_repeats(run).median().to_numpy(dtype=np.float64)


@cached
def _step_times(run: Record) -> pd.DataFrame:
    return _over_repeats(step_repeats(run), step_repeats(run, "host_ms"))


def token_of_step(run: Record, step: Any) -> Any:
    """The number, counted from 1, of the token that a decode step (or each of a Series) made.

    Steps count from 0. Token 1 comes from the prefill, unless the request decodes it again.
    """
    if run.request.first_token == "redecode":
        return step + 1
    return step + 2


@cached
def step_table(run: Record) -> pd.DataFrame:
    """One row a decode step, columns `STEP_COLUMNS`; ms are medians over repeats beside their
    spread.

    ``index`` and ``text`` are of the first row's token that the step made (missing for steps past
    its end), ``cache_len`` is the length the step leaves. ``outlier`` marks steps above both
    `OUTLIER_FACTOR` times the median step and the median plus `OUTLIER_DEVIATIONS` median absolute
    deviations, and steps that took `SPIKE_FACTOR` times the median step in any repeat.
    """
    table = _step_times(run).reset_index()
    tokens = tokens_of(run, 0)[["step", "index", "text"]].dropna(subset=["step"])
    table = table.merge(tokens, on="step", how="left").astype({"index": "Int64", "step": "int64"})
    table["cache_len"] = _cache_lengths(run, table["step"] + 1)
    median = table["device_ms"].median()
    limit = median + OUTLIER_DEVIATIONS * (table["device_ms"] - median).abs().median()
    slow = (table["device_ms"] > limit) & (table["device_ms"] > OUTLIER_FACTOR * median)
    table["outlier"] = (
        slow | (step_repeats(run).max(axis="columns") > SPIKE_FACTOR * median).to_numpy()
    )
    return table[list(STEP_COLUMNS)]


def _cache_lengths(run: Record, places: pd.Series) -> pd.api.extensions.ExtensionArray:
    """Cached tokens after the prefill (place 0) or after step s (place s + 1); missing where not
    recorded.
    """
    return pd.Series((run.cache.lengths or []), dtype="Int64").reindex(places).array


class Trend(NamedTuple):
    """A robust line through the medians of the steps over the cache's length.

    ``slope`` is ms per cached token and ``interval`` its 95 % interval; ``growth`` is how many
    tokens the cache grew by, over the median step in ms.
    """

    slope: float
    interval: tuple[float, float]
    growth: float

    @property
    def shares(self) -> tuple[float, float, float]:
        """The growth over the run as a part of the median step, and the ends of its interval."""
        return (
            self.slope * self.growth,
            self.interval[0] * self.growth,
            self.interval[1] * self.growth,
        )


@cached
def decode_trend(run: Record) -> Trend | None:
    """The trend of a run's steps, outliers aside; None for fewer than 16 steps.

    The slope is Theil and Sen's, the median over pairs of steps; its interval is Sen's, from
    Kendall's statistic.
    """
    table = step_table(run).dropna(subset=["cache_len"])
    table = table[~table["outlier"]]
    if len(table) < _TREND_STEPS:
        return None
    # Every pair of some hundred steps says as much as every pair of thousands.
    chosen = table.iloc[np.linspace(0, len(table) - 1, min(len(table), _PAIRS)).round().astype(int)]
    x = attended(run, chosen["cache_len"].to_numpy(dtype=np.float64))
    y = chosen["device_ms"].to_numpy(dtype=np.float64)
    first, second = np.triu_indices(len(x), k=1)
    run_of_pair = x[second] - x[first]
    rise_of_pair = y[second] - y[first]
    has_slope = run_of_pair > 0
    slopes = rise_of_pair[has_slope] / run_of_pair[has_slope]
    if not slopes.size:
        return None
    # Kendall's statistic of n points without a trend has the variance n (n - 1) (2 n + 5) / 18. Its
    # 95 % interval, over twice the number of pairs, is how far from the median the quantiles are.
    count = len(x)
    deviation = np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    reach = _NORMAL * deviation / 2 / slopes.size
    ends = np.clip([0.5 - reach, 0.5, 0.5 + reach], 0, 1)
    low, slope, high = np.quantile(slopes, ends).tolist()
    return Trend(slope, (low, high), float(np.ptp(x) / np.median(y)))


def _source_of_first_token(run: Record) -> str:
    """What the first token is from: the prefill, or where a server tells none its first token."""
    return "first_token" if run.waits_for_first_token else "prefill"


# -- tokens and regions ----------------------------------------------------------------------------


@cached
def tokens_of(run: Record, row: int) -> pd.DataFrame:
    """One row per generated token of batch row ``row``, from 0: columns `TOKEN_COLUMNS`.

    ms are medians over repeats of the decode step that made the token (p10 and p90 beside them);
    missing for a token that came from the prefill. They are rounded to 2^-20 ms (a nanosecond,
    below what clocks resolve), so that sums over tokens are exact in any order. ``region`` is the
    index of the grounding region the token belongs to, -1 before the first. In a batch a step's
    time is the whole batch's. ``probability`` (0 to 1) and ``margin`` (of logits) are those of
    `recorded_probabilities`.

    Raises `UnknownName` for a row that the record does not have.
    """
    result = run.result_of(row)
    ids = result.ids
    texts = result.token_texts
    index = np.arange(len(ids))
    steps = _steps_of_tokens(run, len(ids))
    # Objects, because pandas hands text to pyarrow where that is installed, and a token may be a
    # lone surrogate, which pyarrow refuses.
    table = pd.DataFrame(
        {"index": index, "id": ids, "text": pd.Series(texts, dtype=object), "step": steps}
    )
    table["source"] = np.where(steps.isna(), _source_of_first_token(run), "decode")
    # The cache's lengths begin with the one that the prefill leaves, then one for each step.
    places = steps.fillna(-1) + 1
    table["cache_len"] = _cache_lengths(run, places)
    table["region"] = token_regions(parse_grounding("".join(texts), run.model.family), texts)
    times = _step_times(run).reindex(steps.astype("float64")).reset_index(drop=True)
    times = _on_exact_grid(times)
    probabilities = recorded_probabilities(run, row)
    return pd.concat([table, times, probabilities], axis=1)[list(TOKEN_COLUMNS)]


def _steps_of_tokens(run: Record, count: int) -> pd.Series:
    """The number of the decode step that made each of ``count`` tokens; missing for the prefill's.

    The prefill gives the first token, so the first step makes the second one, unless the request
    decodes the first token again.
    """
    steps = pd.Series(np.arange(count), dtype="Int64")
    if run.request.first_token != "redecode":
        steps = steps - 1
    return steps.where(steps >= 0)


def _on_exact_grid(times: pd.DataFrame) -> pd.DataFrame:
    """Times in ms as multiples of 2^-20 ms, of which sums are exact in any order."""
    return (times * _SUMMABLE).round() / _SUMMABLE


def recorded_probabilities(run: Record, row: int = 0) -> pd.DataFrame:
    """One row a generated token, columns `PROBABILITY_COLUMNS`, float64; NaN where not known.

    ``probability`` is the token's own, 0 to 1, ``margin`` its logit minus the highest other one.
    """
    tokens = range(len(run.results[row].ids))
    table = pd.DataFrame(index=tokens, columns=list(PROBABILITY_COLUMNS), dtype="float64")
    if run.probabilities is not None:
        known = run.probabilities[row]
        # As float64, in which None becomes NaN.
        table["probability"] = np.exp(np.asarray(known.logprobs, dtype=np.float64))
        table["margin"] = np.asarray(known.margins, dtype=np.float64)
    return table


def text_tokens(run: Record, row: int = 0) -> dict[int, np.ndarray]:
    """The tokens of each region's stripped text, as int64 indices: no marks, box or white space
    around it.
    """
    result = run.results[row]
    text = result.text or ""
    lengths = np.asarray([len(each) for each in result.token_texts], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    ends = starts + np.maximum(lengths, 1)  # a part of a character has no text, and a place
    indices = {}
    for region in grounding_of(run, row).regions:
        if not region.text:
            indices[region.index] = np.arange(0)
            continue
        first = text.index(region.text, region.content_start)
        # Neither starts nor ends ever fall, so a region's tokens stand next to each other.
        begin = np.searchsorted(ends, first, side="right")
        end = np.searchsorted(starts, first + len(region.text), side="left")
        indices[region.index] = np.arange(begin, end)
    return indices

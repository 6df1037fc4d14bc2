"""Many records side by side: how prefill, decode and throughput scale, and what each way costs and
loses.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic

import numpy as np
import pandas as pd

from ocr_phases.analyse.checks import noisy_checks
from ocr_phases.analyse.figure_rows import Place, names_in
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.floors import decode_floor
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.noise import ceilings_are_wrong, trusted_floors
from ocr_phases.analyse.quality import quality_of
from ocr_phases.analyse.repetition import loops_sentence, repeated_share
from ocr_phases.analyse.stages import end_to_end_ms, step_ms, step_table
from ocr_phases.analyse.statistics import leaders
from ocr_phases.analyse.text import plain_text, text_measures
from ocr_phases.errors import Hinted
from ocr_phases.families import FAMILIES, UNLIMITED_OCR
from ocr_phases.record import Record, RecordType
from ocr_phases.settings import STRATEGIES, VISIONS
from ocr_phases.text import count_text, filled, ms_text

_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_COLUMNS, _NOTES = _TEXTS["columns"], _TEXTS["notes"]
SWEEP_COLUMNS = (*_COLUMNS["cell"], *names_in(Place.SWEEP), *_COLUMNS["facts"])
FAILURE_COLUMNS, CURVE_COLUMNS = (
    (*SWEEP_COLUMNS[:6], "reason"),
    (*_COLUMNS["drawn"], *_COLUMNS["curve"]),
)
#: One row a way to read a page: ``lost`` is its distance to the truth, or from agreement with the
#: reference, a share of one; ``noisy`` whether its times are not to be trusted, ``frontier``
#: whether it is not and no other costs and loses less.
POINT_COLUMNS = tuple(_COLUMNS["point"])
#: What a cell is called by, its settings that vary, in this order; and how its model was loaded.
_NAMED = {name: _TEXTS["named"].get(name, "{}") for name in _COLUMNS["named"]}
LOADED = {name: _NAMED[name] for name in ("attention", "dtype")}

_POINTS = 60  # of a curve: single steps are noise here
_TAILS = {
    "page_ms_p90": (0.9, 10),
    "page_ms_p99": (0.99, 100),
}  # a quantile, and how many values it takes
_NEAR_BEST = 0.01  # a loss that is no reason against a cell
_TOLD = 3  # points told beside the best


@dataclass(frozen=True, repr=False)
class SweptRecords(Hinted, Generic[RecordType]):
    """The records of a sweep by cell in ``runs``, with ``table``, ``failures`` and ``verdict``.

    ``failures`` are the cells that could not be measured, columns `FAILURE_COLUMNS`.
    """

    runs: dict[str, RecordType]
    failures: pd.DataFrame

    @cached_property
    def table(self) -> pd.DataFrame:
        """`sweep_table` of the records."""
        return sweep_table(self.runs)

    @cached_property
    def cost_quality(self) -> pd.DataFrame:
        """What each cell costs and loses, columns `POINT_COLUMNS`: of the smallest batch and
        longest output.

        A point is called by its preset and what else varies. Empty where no text can be judged.
        """
        table = self.table
        varies = [name for name in ("model", "strategy", "vision") if table[name].nunique() > 1]
        named = table[["preset", *varies, *loaded_ways(table)]].agg(", ".join, axis="columns")
        cells = table.assign(
            name=named, noisy=table["noise"] != "", prompt_tokens=table["prefill_len"]
        )
        cells = cells[cells["batch"] == cells["batch"].min()].sort_values("max_new_tokens")
        called = cells.set_index("cell")["name"]
        return _points(cells.assign(reference=cells["reference"].replace(called)))

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Decode over the cache, columns `CURVE_COLUMNS`: up to 60 points a record, medians over
        their steps.

        Of records that differ in their output length alone the longest stands for all: the others
        are its start. One with eager vision comes before others, which decode alike.
        """
        rows = [{"cell": cell, **_facts(run)} for cell, run in self.runs.items()]
        facts = pd.DataFrame(rows, columns=[*_COLUMNS["drawn"], "tokens", "vision"])
        facts = facts.sort_values(["tokens", "vision"], kind="stable")
        longest = facts.drop_duplicates(_COLUMNS["drawn"][1:], keep="last").sort_index()
        curves = [pd.DataFrame(columns=list(CURVE_COLUMNS))]
        for cell in longest["cell"]:
            run = self.runs[cell]
            steps = step_table(run).dropna(subset=["cache_len"])
            floors = decode_floor(run).set_index("step")["floor_ms"]
            steps["floor_ms"] = np.nan if ceilings_are_wrong(run) else steps["step"].map(floors)
            piece = np.arange(len(steps)) * min(_POINTS, len(steps)) // max(len(steps), 1)
            curve = steps[_COLUMNS["curve"]].astype("float64").groupby(piece).median()
            curves += [curve.assign(cell=cell, **_facts(run))] if len(curve) else []
        return pd.concat(curves[1:] or curves, ignore_index=True)[list(CURVE_COLUMNS)]

    @cached_property
    def findings(self) -> list[str]:
        """What `verdict` says, piece by piece."""
        return list(filter(None, _findings(self))) or [_NOTES["nothing"]]

    @property
    def verdict(self) -> str:
        """The sweep's result as a short paragraph of plain text: noisy cells, then the cell to
        take.
        """
        return " ".join(self.findings)

    @property
    def first(self) -> RecordType:
        """The first record of the smallest batch: one of a single row holds the page."""
        return min(self.runs.values(), key=lambda run: len(run.results))

    def recommended(self) -> tuple[str, str] | None:
        """The cell to take and why: the most pages per minute of those whose text is as good as
        any.

        Without a measure of the text, of the cells of one preset. None where fewer than two such
        cells have known spreads and no noise.
        """
        cells = self.table[self.table["noise"] == ""]
        lost, reason = cells["edit_distance"].fillna(1.0 - cells["agreement"]), "of_text"
        if lost.notna().any():
            cells = cells[lost <= lost.min() + _NEAR_BEST]
        else:
            alike, reason = ["model", "prefill_len", "preset", "max_new_tokens"], "of_preset"
            cells = _widest(cells, alike, "cell")
        times = {cell: end_to_end_ms(run) / len(run.results) for cell, run in self.runs.items()}
        best, why = _leader(reason, cells, times, self.table)
        return (best, why) if best and len(cells) > 1 else None


def sweep_table(records: Mapping[str, Record]) -> pd.DataFrame:
    """One row a record, columns `SWEEP_COLUMNS`: figures of `Record.summary`, ms on the device
    clock.

    ``batch`` rows run side by side: ``prefill_ms`` and ``inter_token_ms`` (one decode step) are the
    whole batch's, ``tokens_per_s`` counts the tokens of all its rows. ``prefill_len`` and
    ``tokens`` (generated) are a row's, ``peak_bytes`` the largest of any phase. ``page_ms`` is a
    page's time from its file to its last token (the whole batch's), with p90 from 10 repeats on and
    p99 from 100; ``pages_per_min`` counts all rows. The floors are what the hardware allows
    (`ocr_phases.analyse.floors`), that of a decode step in the middle of the run by
    ``step_bound_by``; their ceilings are ``measured`` or of a ``datasheet`` (``floor_source``).
    ``prefill_captured`` says whether a graph ran the prefill's language model. ``energy_j`` is of a
    repeat, ``repeated_share`` of the decode time, NaN where the end token was ignored.
    ``edit_distance``, ``agreement`` and ``reference`` are `losses`'; ``noise`` names the checks by
    which the cell's figures are not to be trusted. Sorted by prompt length, strategy, vision (eager
    first), batch and tokens.
    """
    lost = losses(records).to_dict("index")
    rows = [{"cell": cell, **_cell_figures(run), **lost[cell]} for cell, run in records.items()]
    figures = dict.fromkeys(names_in(Place.SWEEP), "float64")
    table = pd.DataFrame(rows, columns=list(SWEEP_COLUMNS)).astype(figures)
    order = ["prefill_len", "strategy", "vision", "batch", "tokens"]
    return table.sort_values(
        order, ascending=[name != "vision" for name in order], ignore_index=True
    )


def _facts(run: Record) -> dict[str, Any]:
    """What tells a cell from others."""
    loaded = {name: getattr(run.model, name) or "" for name in (*LOADED, "strategy")}
    asked = {"vision": run.request.vision, "max_new_tokens": run.request.max_new_tokens}
    named = {"model": run.model.name, "preset": run.page.preset, "device": run.device.name}
    return {**loaded, **asked, **named, "batch": len(run.results), "tokens": run.token_count}


def _cell_figures(run: Record) -> dict[str, Any]:
    figures = summary(run)
    times = end_to_end_ms(run)
    setup = run.model.strategy_setup
    floors = {row["stage"]: row for row in trusted_floors(run).to_dict("records")}
    prefill, step = floors.get("prefill", {}), floors.get("decode_step", {})
    return {
        **figures,
        **_facts(run),
        **{
            name: np.quantile(times, tail)
            for name, (tail, least) in _TAILS.items()
            if len(times) >= least
        },
        "prefill_captured": setup is not None and bool(setup.prefill_capture_ms),
        "pages_per_min": 60_000.0 * len(run.results) / figures["page_ms"],
        "prefill_floor_ms": prefill.get("floor_ms"),
        "floor_source": prefill.get("source"),
        "step_floor_ms": step.get("floor_ms"),
        "step_bound_by": step.get("bound_by"),
        "noise": ", ".join(check.label for check in noisy_checks(run)),
        "repeated_share": None if run.request.ignore_eos else repeated_share(run),
    }


def losses(records: Mapping[str, Record]) -> pd.DataFrame:
    """What each record of one page lost: columns ``edit_distance``, ``agreement`` and
    ``reference``.

    The index is their names. ``edit_distance`` is by the record's own truth. Where no record has
    one, ``agreement`` is with the record of the longest prompt, an eager one first; ``reference``
    names that, or the record that is the truth. Records that ignored the end token are left out.
    All are of the first row.
    """
    found = [{} if run.request.ignore_eos else quality_of(run) for run in records.values()]
    table = pd.DataFrame(found, list(records), ["edit_distance", "agreement"], dtype="float64")
    truths = [run.truth_of() for run in records.values()]
    table["reference"] = [truth.file if truth and truth.reference else None for truth in truths]
    texts = {name: text for name, run in records.items() if (text := ended_text(run))}
    if len(texts) > 1 and not any(found):
        reference = max(texts, key=lambda name: richness(records[name]))
        table["agreement"] = pd.Series(agreements(texts, reference))
        table["reference"] = reference
    return table


def agreements(texts: Mapping[Any, str], reference: Any) -> dict[Any, float]:
    """Of each plain text with the one called ``reference``: 1 minus their edit distance."""
    true = texts[reference]
    return {
        name: 1.0 - text_measures(text, true)["edit_distance"][0] for name, text in texts.items()
    }


def frontier(costs: pd.Series, lost: pd.Series) -> pd.Series:
    """Whether no other point has at most this cost and this loss, and less of one: the Pareto
    frontier.
    """
    least = lost.dropna().groupby(costs).min().cummin()
    cheaper = least.shift(fill_value=np.inf)
    return (lost <= costs.map(least)) & (lost < costs.map(cheaper))


def _points(cells: pd.DataFrame) -> pd.DataFrame:
    """What was judged of the cells, with cost and loss, as `POINT_COLUMNS`, the quickest first.

    Of several cells of one name the last stands for all.
    """
    measure = measure_of(cells) or "agreement"
    lost, reference = cells[measure].astype("float64"), None
    if measure == "agreement":
        lost, reference = 1.0 - lost, cells["reference"]
    points = cells.assign(lost=lost, measure=measure, reference=reference).dropna(
        subset=["lost", "page_ms"]
    )
    points = points.drop_duplicates("name", keep="last")
    points["frontier"] = frontier(points["page_ms"].mask(points["noisy"]), points["lost"])
    return points[list(POINT_COLUMNS)].sort_values("page_ms", ignore_index=True)


def preset_points(pages: pd.DataFrame) -> pd.DataFrame:
    """The presets of a batch as points, columns `POINT_COLUMNS`, over the pages that all of them
    read.

    ``pages`` are `ocr_phases.batch.index.BatchIndex`'s. Time and prompt are medians over pages,
    memory is the largest, and ``lost`` the mean over pages, as OmniDocBench's edit distance is.
    Empty without a measure.
    """
    presets = _presets(pages).rename(columns={"preset": "name"})
    # Without one of its own a page's reference is its longest prompt.
    longest = presets.nlargest(1, "prompt_tokens")["name"]
    references = [*pages["reference"].dropna(), *longest, None]
    return _points(presets.assign(reference=references[0], noisy=False))


def measure_of(pages: pd.DataFrame) -> str | None:
    """What a batch's pages are judged by: ``edit_distance`` where any has a truth, else
    ``agreement``.
    """
    return next(
        (name for name in ("edit_distance", "agreement") if pages[name].notna().any()), None
    )


def preset_table(pages: pd.DataFrame) -> pd.DataFrame:
    """Each preset over the pages that all read: medians of cost, means of the measures, a row a
    preset.

    Columns: ``preset``, ``pages``, ``page_ms``, ``image_tokens``, ``compression`` (medians), the
    measures, and ``loops``, the pages that end in a loop.
    """
    return (
        _presets(pages)
        .drop(columns=["prompt_tokens", "peak_bytes"])
        .dropna(axis="columns", how="all")
    )


def _presets(pages: pd.DataFrame) -> pd.DataFrame:
    """Cost, measures and loops of each preset over the pages that were judged at every one.

    Over others, one that fails hard pages would look better.
    """
    known = pages.dropna(subset=[measure_of(pages) or "agreement"])
    read = known.groupby("page_id")["preset"].transform("nunique") == known["preset"].nunique()
    known = known[read].assign(pages=1, loops=known["repetition"] > 0)
    how = {figure: way for way, figures in _COLUMNS["over_pages"].items() for figure in figures}
    return known.groupby("preset", sort=False).agg(how).reset_index()


def category_table(pages: pd.DataFrame) -> pd.DataFrame:
    """The mean measure by category (rows) and preset (columns); empty for a single category."""
    measure = measure_of(pages)
    if measure is None or pages["category"].fillna("").replace("", np.nan).nunique() < 2:
        return pd.DataFrame()
    known = pages.dropna(subset=[measure])
    table = known.pivot_table(index="category", columns="preset", values=measure, sort=False)
    table.insert(0, "pages", known.groupby("category")["page_id"].nunique())
    return table.reset_index()


def own_text(run: Record, row: int = 0) -> str | None:
    """A row's text as plain text without marks; None where the record has none."""
    text = run.results[row].text
    return text and plain_text(parse_grounding(text, run.model.family).without_marks(text))


def ended_text(run: Record) -> str:
    """A run's plain text, for others to agree with; empty where the end token was ignored."""
    return "" if run.request.ignore_eos else own_text(run) or ""


def richness(run: Record) -> tuple[int, bool, bool]:
    """By what a record becomes the reference of others: its prompt's length, then eager steps."""
    return run.request.prefill_len, run.model.strategy == "eager", run.request.vision == "eager"


# -- sentences, in the words of scaling.toml ----------------------------------------------------------

_CELL = (*_NAMED, "device", "prefill_len")  # what identifies a cell
#: By kind of strategy: its values in order, the columns of time and floor.
_WAYS = {
    "strategy": (STRATEGIES, "inter_token_ms", "step_floor_ms"),
    "vision": (VISIONS, "prefill_ms", "prefill_floor_ms"),
}


def _findings(sweep: SweptRecords) -> Iterator[str]:
    table, loud = sweep.table, sweep.table[sweep.table["noise"] != ""]
    if len(loud):
        reasons = ", ".join(dict.fromkeys(", ".join(loud["noise"]).split(", ")))
        cells = "every cell" if len(loud) == len(table) else ", ".join(loud["cell"])
        yield filled(_NOTES["noisy"], reasons=reasons, cells=cells)
    if found := sweep.recommended():
        yield filled(_NOTES["take"], name=_names([found[0]], table), reason=found[1])
    yield cost_quality_sentence(sweep.cost_quality)
    yield loops_sentence(table, "cell")
    yield (by_model := models_sentence(table))
    yield ways_sentence(table, "strategy")
    yield "" if by_model else _prefills_sentence(table)
    yield ways_sentence(table, "vision")
    yield from _fastest(sweep)
    if len(sweep.failures):
        yield f"{count_text(len(sweep.failures), 'cell')} could not be measured."


def _prefills_sentence(table: pd.DataFrame) -> str:
    """The shortest and the longest prefill of cells that are run alike."""
    cells = _widest(
        table.dropna(subset=["prefill_ms"]), ["vision", "strategy", "max_new_tokens"], "cell"
    )
    rows = cells.sort_values("prefill_ms").to_dict("records")
    ends = [filled(_NOTES["prefill"], row, name=_names([row["cell"]], table)) for row in rows]
    ends = list(dict.fromkeys([*ends[:1], *ends[-1:]]))
    return filled(_NOTES["prefills"], ends=" to ".join(ends)) if ends else ""


def _fastest(sweep: SweptRecords) -> Iterator[str]:
    """The least decode step and the highest rate, as far as the repeats tell them from the others."""
    cells = sweep.table[sweep.table["noise"] == ""].dropna(subset=["inter_token_ms"])
    runs = {cell: sweep.runs[cell] for cell in cells["cell"]}
    if runs and all(len(run.repeats) == 1 for run in runs.values()):
        yield _NOTES["single"]
    steps = {cell: step_ms(run) for cell, run in runs.items()}
    rates = {
        cell: run.repeat_ms("decode", "decode") / run.decoded_tokens for cell, run in runs.items()
    }
    for note, times in (("step", steps), ("rate", rates)):
        yield _leader(note, cells, times, sweep.table)[1]


def _leader(
    note: str, cells: pd.DataFrame, times: Mapping[str, np.ndarray], table: pd.DataFrame
) -> tuple[str, str]:
    """The cell of the least times, and the note on it and on those not told from it; empty for
    none.
    """
    best = leaders({cell: times[cell] for cell in cells["cell"]})
    if not best:
        return "", ""
    row, names = (
        cells.set_index("cell").loc[best[0]],
        [_names(each, table) for each in (best[:1], best[1:])],
    )
    tied = filled(_NOTES["tied"], others=names[1]) if best[1:] else ""
    return best[0], filled(_NOTES[note], row, name=names[0], tied=tied)


def _names(cells: list[str], table: pd.DataFrame) -> str:
    """What cells are called by the settings that vary; of many the first and their number."""
    if not cells:
        return ""
    row = table[table["cell"].isin(cells[:1])].iloc[0]
    others = [count_text(len(cells) - 1, "other")] if cells[1:] else []
    return " and ".join([cell_name(row, table) or str(row["preset"]), *others])


def _widest(cells: pd.DataFrame, alike: Sequence[str], differ: str) -> pd.DataFrame:
    """Of the groups of cells that are ``alike`` the one with the most values of ``differ``.

    Then one of eager ways, of the fewest rows, the longest output and the longest prompt.
    """

    def rank(rows: pd.DataFrame) -> tuple[int, ...]:
        cell = rows.iloc[0]
        ways = [cell[way] != "eager" for way in ("strategy", "vision") if way in alike]
        longest = rows["prefill_len"].max()
        return -rows[differ].nunique(), *ways, cell["batch"], -cell["max_new_tokens"], -longest

    return min(
        (rows for _, rows in cells.groupby([*alike], sort=False)), key=rank, default=cells.head(0)
    )


def cost_quality_sentence(points: pd.DataFrame) -> str:
    """What the ways on the frontier of time lose against the best, and what they save; empty for
    one way.
    """
    points = points[~points["noisy"].astype(bool)]
    if len(points) < 2:
        return ""
    texts = _TEXTS[points["measure"].iloc[0]]
    points = points.assign(agrees=1.0 - points["lost"], away=points["name"] != points["reference"])
    best = points.sort_values(["away", "lost", "page_ms"]).iloc[0]
    more, time = 100.0 * (points["lost"] - best["lost"]), points["page_ms"] / best["page_ms"]
    others = points.assign(more=more, time=time)[
        points["frontier"] & (points["name"] != best["name"])
    ]
    others = others.sort_values("lost").head(_TOLD)
    told = "; ".join(filled(texts["other"], row) for row in others.to_dict("records"))
    said = filled(texts["best" if best["away"] else "reference"], best)
    return f"{said}: {told or 'no other way is quicker'}."


def ways_sentence(table: pd.DataFrame, way: str) -> str:
    """Compare decode by ``"strategy"`` or prefill by ``"vision"``, from `sweep_table`; empty for
    one value.

    Compared cells differ in that column alone. Of several such groups the one with the most values
    is taken, then the one with the other column eager, the fewest rows and the longest output. The
    sentence names the settings that vary in the table. The floor is the group's, from measured
    ceilings if there are any.
    """
    texts, (known, column, floor_column) = _TEXTS["ways"], _WAYS[way]
    cells = table[table[column].notna() & table[way].isin(known)]
    rows = _widest(cells, [name for name in _CELL if name != way], way)
    if rows[way].nunique() < 2:
        return ""
    floor = rows.dropna(subset=[floor_column]).sort_values("floor_source", ascending=False).head(1)
    times = rows.groupby(way)[column].first().reindex(known).dropna()
    took, batch = _with_one_unit([*times, *floor[floor_column]]), rows["batch"].iloc[0]
    unit = texts["unit_of_rows" if way == "strategy" and batch > 1 else f"unit_of_{way}"]
    took[0] = f"{took[0]} {filled(unit, batch=batch)}"
    parts = ", ".join(
        f"{ms} {texts.get(name, name)}" for ms, name in zip(took, times.index, strict=False)
    )
    for row in floor.to_dict("records"):
        allows = texts[row["step_bound_by"] if way == "strategy" else "prefill"]
        parts += filled(allows, least=took[-1], source=texts.get(row["floor_source"], "datasheet"))
    said, named = filled(texts[way], times=parts), cell_name(rows.iloc[0], table, but=way)
    return f"At {named}, {said}" if named else said[0].upper() + said[1:]


def models_sentence(table: pd.DataFrame) -> str:
    """Compare prefill and decode step by model, from `sweep_table`; empty for one model.

    Told are the cells that most models have: strategies, batch size, output length and the preset's
    job alike, the smallest batch, eager, the longest output and the longest prompt first.
    """
    cells = table.dropna(subset=["prefill_ms", "inter_token_ms"])
    if cells["model"].nunique() < 2:
        return ""
    # Its presets are named by the job for which they stand.
    jobs = cells["preset"].replace(dict(FAMILIES[UNLIMITED_OCR].stands_for))
    alike = ["job", "strategy", "vision", "batch", "max_new_tokens", *loaded_ways(cells)]
    told = _widest(cells.assign(job=jobs), alike, "model")
    told = (
        told.sort_values("prefill_len")
        .drop_duplicates("model", keep="last")
        .sort_values("prefill_ms")
    )
    each = "; ".join(filled(_NOTES["model"], row) for row in told.to_dict("records"))
    return filled(_NOTES["models"], told.iloc[0], each=each)


def cell_name(row: pd.Series, table: pd.DataFrame, but: str = "") -> str:
    """A cell's settings that vary in its table: preset and batch size together, then the others.

    ``but`` is a column to leave out. Empty if nothing varies.
    """
    varied = {name for name in _CELL if table[name].nunique() > 1} - {but, *LOADED} | {
        *loaded_ways(table)
    }
    if varied & {"preset", "prefill_len", "batch"}:
        varied |= {"preset", "batch"}
    return ", ".join(text.format(row[name]) for name, text in _NAMED.items() if name in varied)


def loaded_ways(table: pd.DataFrame) -> list[str]:
    """Which of `LOADED` a model of the table has several of: models may differ in them by
    themselves.
    """
    return [name for name in LOADED if table.groupby("model")[name].nunique().max() > 1]


def _with_one_unit(values: Sequence[float]) -> list[str]:
    """Times as text; a common unit follows the first only."""
    texts = [ms_text(value) for value in values]
    units = {text.partition(" ")[2] for text in texts}
    return (
        texts if len(units) > 1 else [*texts[:1], *(text.partition(" ")[0] for text in texts[1:])]
    )

"""Many records side by side: how prefill, decode and throughput scale, and what each way costs and loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from ocr_phases.analyse.checks import noisy_checks
from ocr_phases.analyse.floors import decode_floor, floor_table
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.quality import quality_of
from ocr_phases.analyse.stages import end_to_end_ms, step_ms, step_table
from ocr_phases.analyse.statistics import leaders
from ocr_phases.analyse.text import plain_text, text_measures
from ocr_phases.errors import OcrPhasesError, public
from ocr_phases.families import FAMILIES, UNLIMITED_OCR
from ocr_phases.record import PhaseRun, Table, elsewhere
from ocr_phases.settings import STRATEGIES, VISIONS
from ocr_phases.store import CELL_STATUS, CellStatus, read_status
from ocr_phases.text import count_text, ms_text, percent_text

SWEEP_COLUMNS = (
    *("cell", "preset", "strategy", "vision", "batch", "max_new_tokens", "prefill_len", "tokens"),
    *("prefill_captured", "prefill_ms", "vision_ms", "vision_share", "ttft_ms"),
    *("inter_token_ms", "inter_token_ms_p90", "decode_ms"),
    *("page_ms", "page_ms_p90", "page_ms_p99", "pages_per_min"),
    *("prefill_floor_ms", "step_floor_ms", "tokens_per_s", "kv_cache_bytes", "peak_bytes"),
    *("edit_distance", "agreement", "step_bound_by", "floor_source", "reference"),
    *("model", "attention", "dtype", "device", "noise"),
)
FAILURE_COLUMNS = ("cell", "preset", "strategy", "vision", "batch", "max_new_tokens", "reason")
CURVE_COLUMNS = (
    *("cell", "model", "attention", "dtype", "preset", "strategy", "batch", "cache_len"),
    *("device_ms", "device_ms_p10", "device_ms_p90", "floor_ms"),
)
#: One row a way to read a page: ``lost`` is its distance to the truth, or from agreement with the reference,
#: a share of one; ``noisy`` whether its times are not to be trusted, ``frontier`` whether it is not and no
#: other costs and loses less.
POINT_COLUMNS = (
    *("name", "page_ms", "prompt_tokens", "peak_bytes", "lost", "measure", "reference", "noisy", "frontier"),
)

#: How a cell's model was loaded, in a name.
LOADED = {"attention": "{} attention", "dtype": "{}"}
_POINTS = 60  # of a curve: single steps are noise here
_TAILS = {"page_ms_p90": (0.9, 10), "page_ms_p99": (0.99, 100)}  # a quantile, and how many values it takes
_NEAR_BEST = 0.01  # a loss that is no reason against a cell


@public
@dataclass(frozen=True)
class SweepResult:
    """The records of a sweep by cell in ``runs``, with ``table``, ``failures``, ``verdict`` and ``plot``.

    ``failures`` are the cells that could not be measured, columns `FAILURE_COLUMNS`.
    """

    runs: dict[str, PhaseRun]
    failures: pd.DataFrame

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The records in ``folder`` or its ``runs``, or in the ``runs`` of each model's folder in it.

        Raises `OcrPhasesError` where none is or one is damaged.
        """
        path = Path(folder)
        path = path / "runs" if (path / "runs").is_dir() else path
        files = _files(path, "") or _files(path, "*/runs/")
        if not files:
            raise OcrPhasesError(f"{path} holds no records: name the folder that a sweep wrote.")
        statuses = {name: file for name, file in files.items() if name.endswith(CELL_STATUS)}
        runs = {
            name.rpartition(".json")[0]: PhaseRun.load(files[name]) for name in files.keys() - statuses.keys()
        }
        rows = [_failure(name.removesuffix(CELL_STATUS), file) for name, file in statuses.items()]
        failures = [row for row in rows if row is not None]
        return cls(dict(sorted(runs.items())), pd.DataFrame(failures, columns=list(FAILURE_COLUMNS)))

    def with_truth(self, truth: str | Path) -> Self:
        """The same sweep with what its page says: `PhaseRun.with_truth` of every record."""
        if all(run.request.get("ignore_eos") for run in self.runs.values()):
            raise OcrPhasesError(
                "These records ignored the end token, so their texts have no end to compare: sweep again "
                "with --truth."
            )
        runs = {cell: run.with_truth(truth) for cell, run in self.runs.items()}
        return replace(self, runs=runs)

    @cached_property
    def table(self) -> pd.DataFrame:
        """`sweep_table` of the records."""
        return Table(sweep_table(self.runs))

    @cached_property
    def cost_quality(self) -> pd.DataFrame:
        """What each cell costs and loses, columns `POINT_COLUMNS`: `sweep_points`; empty without a text."""
        return sweep_points(self.table)

    @cached_property
    def findings(self) -> list[str]:
        """What `verdict` says, piece by piece."""
        return [each for each in _verdict_sentences(self) if each] or [_NOTHING]

    @property
    def verdict(self) -> str:
        """The sweep's result as a short paragraph of plain text: noisy cells, then the cell to take."""
        return " ".join(self.findings)

    @property
    def first(self) -> PhaseRun:
        """The first record of the smallest batch: one of a single row holds the page."""
        return min(self.runs.values(), key=lambda run: len(run.results))

    @property
    def plot(self) -> Any:
        """The plots of this sweep: `ocr_phases.show.results_many.SweepPlots`."""
        return elsewhere("show.results_many.SweepPlots")(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return elsewhere("show.results_many.sweep_bundle")(self)

    def recommended(self) -> tuple[str, str] | None:
        """The cell to take and why: the most pages per minute of those whose text is as good as any.

        Without a measure of the text, of the cells of one preset. None where fewer than two such cells have
        known spreads and no noise.
        """
        cells = _quiet(self.table)
        lost = cells["edit_distance"].fillna(1.0 - cells["agreement"])
        if lost.notna().any():
            cells, among = cells[lost <= lost.min() + _NEAR_BEST], _AMONG["text"]
        else:
            groups = cells.groupby(["model", "prefill_len", "preset", "max_new_tokens"])
            cells = max((rows for _, rows in groups), key=len, default=cells)
            among = _AMONG["preset"].format(**cells.iloc[0]) if len(cells) else ""
        paces = {cell: end_to_end_ms(run) / len(run.results) for cell, run in self.runs.items()}
        best = leaders({cell: paces[cell] for cell in cells["cell"]})
        if len(cells) < 2 or not best:
            return None
        rate = cells.set_index("cell").loc[best[0], "pages_per_min"]
        reason = _REASON.format(rate=rate, among=among)
        return best[0], reason + (_UNSURE.format(others=_names(best[1:], self.table)) if best[1:] else "")


def _files(folder: Path, below: str) -> dict[str, Path]:
    """The files of cells in a folder by name; in its sub-folders by model and name."""
    files = sorted([*folder.glob(f"{below}*.json"), *folder.glob(f"{below}*.json.gz")])
    return {f"{file.parts[-3]}/{file.name}" if below else file.name: file for file in files}


def _failure(cell: str, path: Path) -> tuple[Any, ...] | None:
    """The row of a cell that could not be measured; None for one that was."""
    status = read_status(path, CellStatus)
    if status is None or status["state"] == "done":
        return None
    return (cell, *(status["cell"].get(name) for name in FAILURE_COLUMNS[1:-1]), status["reason"])


def sweep_table(records: Mapping[str, PhaseRun]) -> pd.DataFrame:
    """One row a record, columns `SWEEP_COLUMNS`: medians over repeats, ms on the device clock.

    ``batch`` rows run side by side: ``prefill_ms`` and ``inter_token_ms`` (one decode step) are the whole
    batch's, ``tokens_per_s`` counts the tokens of all its rows. ``prefill_len`` and ``tokens`` (generated)
    are a row's, ``peak_bytes`` the largest of any phase. ``page_ms`` is a page's time from its file to its
    last token (the whole batch's), with p90 from 10 repeats on and p99 from 100; ``pages_per_min`` counts all
    rows. The floors are what the hardware allows (`ocr_phases.analyse.floors`), that of a decode step in the
    middle of the run by ``step_bound_by``; their ceilings are ``measured`` or of a ``datasheet``
    (``floor_source``). ``prefill_captured`` says whether a graph ran the prefill's language model.
    ``vision_share`` is ``vision_ms`` over ``prefill_ms``; ``edit_distance``, ``agreement`` and ``reference``
    are `losses`'; ``noise`` names the checks by which the cell's figures are not to be trusted. Sorted by
    prompt length, strategy, vision (eager first), batch and tokens.
    """
    rows = [{"cell": cell, **_cell_figures(run)} for cell, run in records.items()]
    table = pd.DataFrame(rows, columns=list(SWEEP_COLUMNS))
    if any(run.truths or not run.request.get("ignore_eos") for run in records.values()):
        lost = losses(records).reindex(table["cell"])
        table[list(lost.columns)] = lost.to_numpy()
    numbers = list(SWEEP_COLUMNS[SWEEP_COLUMNS.index("prefill_ms") : SWEEP_COLUMNS.index("step_bound_by")])
    table[numbers] = table[numbers].astype("float64")
    order = ["prefill_len", "strategy", "vision", "batch", "tokens"]
    return table.sort_values(
        order, key=lambda values: values != "eager" if values.name == "vision" else values
    ).reset_index(drop=True)


def _cell_figures(run: PhaseRun) -> dict[str, Any]:
    summary, times = run.summary(), end_to_end_ms(run)
    floors = {row["stage"]: row for row in floor_table(run).to_dict("records")}
    prefill, step = floors.get("prefill", {}), floors.get("decode_step", {})
    tails = {name: np.quantile(times, tail) for name, (tail, least) in _TAILS.items() if len(times) >= least}
    median = float(np.median(times))
    share = summary["vision_ms"] / summary["prefill_ms"] if summary["prefill_ms"] else None
    return {name: summary[name] for name in SWEEP_COLUMNS if name in summary} | {
        "preset": run.page["preset"],
        "strategy": run.model["strategy"],
        "vision": run.request["vision"],
        "batch": len(run.results),
        "max_new_tokens": run.request["max_new_tokens"],
        "prefill_captured": bool((run.model.get("strategy_setup") or {}).get("prefill_capture_ms")),
        "vision_share": share,
        "page_ms": median,
        **tails,
        "pages_per_min": 60_000.0 * len(run.results) / median,
        "prefill_floor_ms": prefill.get("floor_ms"),
        "floor_source": prefill.get("source"),
        "step_floor_ms": step.get("floor_ms"),
        "step_bound_by": step.get("bound_by"),
        "peak_bytes": run["peak_bytes"],
        "model": run.model["name"],
        "attention": run.model.get("attention") or "",
        "dtype": run.model["dtype"],
        "device": run.device["name"],
        "noise": ", ".join(check.label for check in noisy_checks(run)),
    }


def decode_curves(records: Mapping[str, PhaseRun]) -> pd.DataFrame:
    """Decode over the cache, columns `CURVE_COLUMNS`: up to 60 points a record, each a median over its steps.

    Of records that differ in their output length alone the longest stands for all: the others are its start.
    One with eager vision comes before others, which decode alike.
    """
    longest: dict[tuple[Any, ...], tuple[str, PhaseRun]] = {}
    eager_first = sorted(records.items(), key=lambda item: item[1].request["vision"] != "eager")
    for cell, run in eager_first:
        loaded = run.model["name"], run.model.get("attention") or "", run.model["dtype"]
        key = (*loaded, run.page["preset"], run.model["strategy"], len(run.results))
        if key not in longest or run.token_count > longest[key][1].token_count:
            longest[key] = (cell, run)
    pieces = []
    for key, (cell, run) in longest.items():
        steps = step_table(run).dropna(subset=["cache_len"])
        if steps.empty:
            continue
        piece = np.arange(len(steps)) * min(_POINTS, len(steps)) // len(steps)
        steps["floor_ms"] = decode_floor(run).set_index("step")["floor_ms"].reindex(steps["step"]).to_numpy()
        columns = ["cache_len", "device_ms", "device_ms_p10", "device_ms_p90", "floor_ms"]
        curve = steps[columns].astype("float64").groupby(piece).median()
        for name, value in zip(CURVE_COLUMNS[6::-1], (*reversed(key), cell), strict=True):
            curve.insert(0, name, value)
        pieces.append(curve)
    if not pieces:
        return pd.DataFrame(columns=list(CURVE_COLUMNS))
    return pd.concat(pieces, ignore_index=True)[list(CURVE_COLUMNS)]


def losses(records: Mapping[str, PhaseRun]) -> pd.DataFrame:
    """What each record of one page lost: columns ``edit_distance``, ``agreement`` and ``reference``.

    The index is their names. ``edit_distance`` is by the record's own truth. Where no record has one,
    ``agreement`` is with the record of the longest prompt, an eager one first; ``reference`` names that, or
    the record that is the truth. Records that ignored the end token are left out. All are of the first row.
    """
    table = pd.DataFrame(index=list(records), columns=["edit_distance", "agreement", "reference"])
    found = {name: {} if run.request.get("ignore_eos") else quality_of(run) for name, run in records.items()}
    for column in ("edit_distance", "agreement"):
        table[column] = [found[name].get(column, np.nan) for name in records]
    truths = {name: run.truth_of() for name, run in records.items()}
    table["reference"] = [truth.file if truth and truth.reference else None for truth in truths.values()]
    if not any(found.values()):
        texts = {name: text for name, run in records.items() if (text := ended_text(run))}
        reference = max(texts, key=lambda name: richness(records[name]), default=None)
        if reference is not None and len(texts) > 1:
            table["agreement"] = agreements(texts, reference)
            table["reference"] = reference
    return table.astype({"edit_distance": "float64", "agreement": "float64"})


def agreements(texts: Mapping[Any, str], reference: Any) -> dict[Any, float]:
    """Of each plain text with the one called ``reference``: 1 minus their edit distance."""
    return {
        name: 1.0 - text_measures(text, texts[reference])["edit_distance"][0] for name, text in texts.items()
    }


def frontier(costs: pd.Series, lost: pd.Series) -> pd.Series:
    """Whether no other point has at most this cost and this loss, and less of one: the Pareto frontier."""
    points = np.column_stack([costs, lost]).astype(np.float64)
    at_most = (points[:, None] <= points).all(axis=-1)
    beaten = (at_most & ~at_most.T).any(axis=0)
    return pd.Series(~beaten, index=costs.index) & costs.notna() & lost.notna()


def sweep_points(table: pd.DataFrame) -> pd.DataFrame:
    """The cells of `sweep_table` as points, columns `POINT_COLUMNS`: the smallest batch, the longest output.

    A point is called by its preset and what else varies. Empty where no text can be judged.
    """
    varies = [name for name in ("model", "strategy", "vision") if table[name].nunique() > 1] + loaded_ways(
        table
    )
    names = [", ".join(map(str, row)) for row in table[["preset", *varies]].itertuples(index=False)]
    known = table.assign(name=names)[table["batch"] == table["batch"].min()]
    measure = "edit_distance" if known["edit_distance"].notna().any() else "agreement"
    known = known[known[measure].notna() & known["page_ms"].notna()]
    known = known.sort_values("max_new_tokens").drop_duplicates("name", keep="last")
    called = dict(zip(known["cell"], known["name"], strict=True))
    reference = known["reference"].map(lambda name: called.get(name, name))
    points = known.assign(reference=reference, prompt_tokens=known["prefill_len"].astype("float64"))
    return _points(points.assign(noisy=points["noise"] != ""), measure)


def _points(known: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Ways with their cost and measure as `POINT_COLUMNS`, the quickest first."""
    lost = known[measure] if measure == "edit_distance" else 1.0 - known[measure]
    points = known.assign(lost=lost.astype("float64"), measure=measure)
    points["frontier"] = frontier(points["page_ms"].mask(points["noisy"]), points["lost"])
    return points[list(POINT_COLUMNS)].sort_values("page_ms").reset_index(drop=True)


def preset_points(pages: pd.DataFrame) -> pd.DataFrame:
    """The presets of a batch as points, columns `POINT_COLUMNS`, over the pages that all of them read.

    ``pages`` are `ocr_phases.batch.index.BatchIndex`'s. Time and prompt are medians over pages, memory is the
    largest, and ``lost`` the mean over pages, as OmniDocBench's edit distance is. Empty without a measure.
    """
    measure = measure_of(pages)
    if measure is None:
        return pd.DataFrame(columns=list(POINT_COLUMNS))
    groups = _read_by_all(pages.dropna(subset=[measure, "page_ms"])).groupby("preset", sort=False)
    kinds = {"page_ms": "median", "prompt_tokens": "median", "peak_bytes": "max", measure: "mean"}
    points = groups.agg(kinds).reset_index(names="name")
    # Without one of its own a page's reference is its longest prompt.
    longest = points.sort_values("prompt_tokens")["name"].tolist()[-1:]
    reference = [*pages["reference"].dropna(), *longest, None][0]
    return _points(
        points.assign(reference=reference if measure == "agreement" else None, noisy=False), measure
    )


def measure_of(pages: pd.DataFrame) -> str | None:
    """What a batch's pages are judged by: ``edit_distance`` where any has a truth, else ``agreement``."""
    return next((name for name in ("edit_distance", "agreement") if pages[name].notna().any()), None)


def preset_table(pages: pd.DataFrame) -> pd.DataFrame:
    """Each preset over the pages that all read: medians of cost, means of the measures, a row a preset.

    Columns: ``preset``, ``pages``, ``page_ms``, ``image_tokens``, ``compression`` (medians), the measures,
    and ``loops``, the pages that end in a loop.
    """
    measure = measure_of(pages)
    known = _read_by_all(pages.dropna(subset=[measure])) if measure else pages.head(0)
    groups = known.assign(loops=known["repetition"] > 0).groupby("preset", sort=False)
    means = ("edit_distance", "cer", "table_similarity", "box_recall", "agreement")
    table = groups.agg(
        pages=("page", "size"),
        **{name: (name, "median") for name in ("page_ms", "image_tokens", "compression")},
        **{name: (name, "mean") for name in means},
        loops=("loops", "sum"),
    )
    return table.reset_index().dropna(axis="columns", how="all")


def category_table(pages: pd.DataFrame) -> pd.DataFrame:
    """The mean measure by category (rows) and preset (columns); empty for a single category."""
    measure = measure_of(pages)
    if measure is None or pages["category"].fillna("").replace("", np.nan).nunique() < 2:
        return pd.DataFrame()
    known = pages.dropna(subset=[measure])
    table = known.pivot_table(index="category", columns="preset", values=measure, sort=False)
    table.insert(0, "pages", known.groupby("category")["page_id"].nunique())
    return table.reset_index()


def _read_by_all(pages: pd.DataFrame) -> pd.DataFrame:
    """The pages that were judged at every preset: else one that fails hard pages would look better."""
    presets = pages.groupby("page_id")["preset"].nunique()
    return pages[pages["page_id"].isin(presets.index[presets == pages["preset"].nunique()])]


def ended_text(run: PhaseRun) -> str:
    """A run's plain text, for others to agree with; empty where the end token was ignored."""
    text = run.result["text"]
    if run.request.get("ignore_eos") or not text:
        return ""
    return plain_text(parse_grounding(text, run.model.get("family")).without_marks(text))


def richness(run: PhaseRun) -> tuple[int, bool, bool]:
    """By what a record becomes the reference of others: its prompt's length, then eager steps."""
    eager = run.model["strategy"] == "eager", run.request["vision"] == "eager"
    return run.request["prefill_len"], *eager


# -- sentences ----------------------------------------------------------------------------------------

_NOTHING = "No cell of this sweep could be measured."
_NOISY = "Too noisy to trust ({reasons}): {cells}. Measure again on a quiet machine."
_SINGLE = "A single repeat leaves the spread unknown, so nothing is called fastest."
_TAKE = "Take {cell}: {reason}."
_REASON = "the most pages per minute ({rate:,.1f}) {among}"
_AMONG = {
    "text": "of the cells whose text is within a point of the best",
    "preset": "at {preset} and {max_new_tokens:,} tokens",
}
_UNSURE = ", though the repeats do not tell it from {others}"
_STEP = "The fastest decode step is {took} ({cell})."
_STEPS = "The lowest decode step is {took} ({cell}), though the repeats do not tell it from {others}."
_RATE = "The highest decode rate is {rate:,.0f} tokens/s ({cell})."
_PREFILL = "{} ({}, {:,} prompt tokens)"
_TOLD = 3  # points beside the best
_NAMES = {"eager": "eager", "cuda_graph": "captured in a graph", "compiled": "compiled"}
_ALLOWS = {"bandwidth": "memory bandwidth allows", "arithmetic": "arithmetic allows"}
_SOURCES = {"measured": "measured on this device", "datasheet": "from the datasheet"}
#: By kind of strategy: its values in order, what they run, the columns of time and floor.
_WAYS = {
    "strategy": (STRATEGIES, "decode", "inter_token_ms", "step_floor_ms"),
    "vision": (VISIONS, "the prefill", "prefill_ms", "prefill_floor_ms"),
}
#: The columns that identify a cell of a sweep.
_CELL = [
    *("model", "attention", "dtype", "device"),
    *("preset", "prefill_len", "strategy", "vision", "batch", "max_new_tokens"),
]


def _verdict_sentences(sweep: SweepResult) -> Iterator[str]:
    table, quiet = sweep.table, _quiet(sweep.table)
    loud = table[table["noise"] != ""]
    if len(loud):
        reasons = dict.fromkeys(reason for noise in loud["noise"] for reason in noise.split(", "))
        cells = "every cell" if len(loud) == len(table) else ", ".join(loud["cell"])
        yield _NOISY.format(reasons=", ".join(reasons), cells=cells)
    if found := sweep.recommended():
        yield _TAKE.format(cell=_names([found[0]], table), reason=found[1])
    yield cost_quality_sentence(sweep.cost_quality)
    by_model = models_sentence(table)
    yield by_model
    yield ways_sentence(table, "strategy")
    prefills = table.dropna(subset=["prefill_ms"])
    if len(prefills) and not by_model:
        rows = (
            _widest(prefills, ["vision", "strategy", "max_new_tokens"], "cell")
            .sort_values("prefill_ms")
            .to_dict("records")
        )
        ends = [
            _PREFILL.format(ms_text(row["prefill_ms"]), _names([row["cell"]], table), row["prefill_len"])
            for row in (rows[0], rows[-1])
        ]
        yield f"The prefill takes {' to '.join(dict.fromkeys(ends))}."
    yield ways_sentence(table, "vision")
    yield from _fastest(sweep, quiet)
    if len(sweep.failures):
        yield f"{count_text(len(sweep.failures), 'cell')} could not be measured."


def _fastest(sweep: SweepResult, quiet: pd.DataFrame) -> Iterator[str]:
    """The least decode step and the highest rate, as far as the repeats tell them from the others."""
    table = sweep.table
    cells = quiet.dropna(subset=["inter_token_ms"]).set_index("cell")
    if len(cells) and all(len(sweep.runs[cell].repeats) == 1 for cell in cells.index):
        yield _SINGLE
    runs = {cell: sweep.runs[cell] for cell in cells.index}
    if best := leaders({cell: step_ms(run) for cell, run in runs.items()}):
        told = {"took": ms_text(cells.loc[best[0], "inter_token_ms"]), "cell": _names(best[:1], table)}
        yield (_STEPS if best[1:] else _STEP).format(**told, others=_names(best[1:], table))
    best = leaders(
        {cell: run.repeat_ms("decode", "decode") / run.decoded_tokens for cell, run in runs.items()}
    )
    if len(best) == 1:
        yield _RATE.format(rate=cells.loc[best[0], "tokens_per_s"], cell=_names(best, table))


def _quiet(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["noise"] == ""]


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
    eager = [way for way in ("strategy", "vision") if way in alike]

    def rank(rows: pd.DataFrame) -> tuple[int, ...]:
        cell, longest = rows.iloc[0], rows["prefill_len"].max()
        ways = (int(cell[way] != "eager") for way in eager)
        return -rows[differ].nunique(), *ways, int(cell["batch"]), -int(cell["max_new_tokens"]), -int(longest)

    groups = [rows for _, rows in cells.groupby(list(alike), sort=False)]
    return min(groups, key=rank, default=cells.head(0))


def cost_quality_sentence(points: pd.DataFrame) -> str:
    """What the ways on the frontier of time lose against the best, and what they save; empty for one way."""
    points = points[~points["noisy"].astype(bool)]
    if len(points) < 2:
        return ""
    by_agreement = points["measure"].iloc[0] == "agreement"
    reference = points["reference"].iloc[0]
    best = points.sort_values(["lost", "page_ms"]).iloc[0]
    if by_agreement and reference in set(points["name"]):
        best = points[points["name"] == reference].iloc[0]
    others = points[points["frontier"] & (points["name"] != best["name"])].sort_values("lost").head(_TOLD)
    told = []
    for name, lost, ms in others[["name", "lost", "page_ms"]].itertuples(index=False, name=None):
        what = f"agrees to {percent_text(1.0 - lost)}"
        if not by_agreement:
            what = f"loses {100.0 * (lost - best['lost']):.1f} points more"
        told.append(f"{name} {what} and takes {ms / best['page_ms']:.2f} of its time")
    sentence = f"Compared with the text of {reference} (agreement, not accuracy)"
    if best["name"] != reference:
        sentence += f", {best['name']} agrees to {percent_text(1.0 - best['lost'])}"
    if not by_agreement:
        sentence = f"{best['name']} loses least (edit distance {percent_text(best['lost'])})"
    return f"{sentence}: {'; '.join(told) or 'no other way is quicker'}."


def ways_sentence(table: pd.DataFrame, way: str) -> str:
    """Compare decode by ``"strategy"`` or prefill by ``"vision"``, from `sweep_table`; empty for one value.

    Compared cells differ in that column alone. Of several such groups the one with the most values is taken,
    then the one with the other column eager, the fewest rows and the longest output. The sentence names the
    settings that vary in the table. The floor is the group's, from measured ceilings if there are any.
    """
    known, what, column, floor_column = _WAYS[way]
    cells = table[table[column].notna() & table[way].isin(known)]
    rows = _widest(cells, [name for name in _CELL if name != way], way)
    if rows[way].nunique() < 2:
        return ""
    floor = rows.dropna(subset=[floor_column]).sort_values("floor_source", ascending=False).head(1)
    batch = rows["batch"].iloc[0]
    unit, allows = "with vision", "its floor is"
    if way == "strategy":
        unit = "a token" if batch == 1 else f"for a step of {batch} rows"
        allows = "".join(_ALLOWS[bound_by] for bound_by in floor["step_bound_by"])
    times = rows.groupby(way)[column].first()
    measured = [name for name in known if name in times.index]
    first, *others = _with_one_unit([*times[measured], *floor[floor_column]])
    parts = [f"{first} {unit} {_NAMES[measured[0]]}"]
    parts += [f"{text} {_NAMES[name]}" for name, text in zip(measured[1:], others, strict=False)]
    least = f"; {allows} {others[-1]} ({_SOURCES[floor['floor_source'].iloc[0]]})" if len(floor) else ""
    named = cell_name(rows.iloc[0], table, but=way)
    subject = f"At {named}, {what}" if named else what[0].upper() + what[1:]
    return f"{subject} takes {', '.join(parts)}{least}."


def models_sentence(table: pd.DataFrame) -> str:
    """Compare prefill and decode step by model, from `sweep_table`; empty for one model.

    Told are the cells that most models have: strategies, batch size, output length and the preset's job
    alike, the smallest batch, eager, the longest output and the longest prompt first.
    """
    cells = table.dropna(subset=["prefill_ms", "inter_token_ms"])
    if cells["model"].nunique() < 2:
        return ""
    # Its presets are named by the job for which they stand.
    jobs = cells["preset"].replace(dict(FAMILIES[UNLIMITED_OCR].stands_for))
    alike = ["job", "strategy", "vision", "batch", "max_new_tokens"]
    told = _widest(cells.assign(job=jobs), alike + loaded_ways(cells), "model")
    told = told.sort_values("prefill_len").drop_duplicates("model", keep="last")
    each = [
        f"{row['model']} {ms_text(row['prefill_ms'])} and {ms_text(row['inter_token_ms'])} "
        f"({row['preset']}, {row['prefill_len']:,} prompt tokens)"
        for _, row in told.sort_values("prefill_ms").iterrows()
    ]
    return f"Prefill and {told['strategy'].iloc[0]} decode step by model: {'; '.join(each)}."


def cell_name(row: pd.Series, table: pd.DataFrame, but: str = "") -> str:
    """A cell's settings that vary in its table: preset and batch size together, then the others.

    ``but`` is a column to leave out. Empty if nothing varies.
    """
    parts = [str(row["model"])] if table["model"].nunique() > 1 else []
    if len(table[["preset", "prefill_len", "batch"]].drop_duplicates()) > 1:
        parts += [str(row["preset"]), f"batch {row['batch']}"]
    for column, text in (
        ("strategy", "{} decode"),
        ("vision", "vision {}"),
        ("max_new_tokens", "{:,} tokens"),
    ):
        if column != but and table[column].nunique() > 1:
            parts.append(text.format(row[column]))
    return ", ".join([*parts, *(LOADED[name].format(row[name]) for name in loaded_ways(table))])


def loaded_ways(table: pd.DataFrame) -> list[str]:
    """Which of `LOADED` a model of the table has several of: models may differ in them by themselves."""
    return [name for name in LOADED if table.groupby("model")[name].nunique().max() > 1]


def _with_one_unit(values: Sequence[float]) -> list[str]:
    """Times as text; a common unit follows the first only."""
    texts = [ms_text(value) for value in values]
    first, *others = texts
    unit = first.rpartition(" ")[2]
    if any(text.rpartition(" ")[2] != unit for text in others):
        return texts
    return [first, *(text.rpartition(" ")[0] for text in others)]

"""PhaseRun: one measurement as a file and as tables.

The record stands between the half that measures (torch, a model) and the half that reads and draws
(numpy, pandas). It alone draws everything, so it carries the page, the tokens and every raw span.
"""

from __future__ import annotations

import base64
import gzip
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd

from ocr_phases.errors import OcrPhasesError, UnknownName, checked, hinted, public
from ocr_phases.families import VISION_STAGES
from ocr_phases.files import read_regular, split_page, unpacked, write_given
from ocr_phases.schema import MOST_BYTES, SPAN_COLUMNS, Truth, check_record, check_spans, parse_json
from ocr_phases.text import count_text, nearest

if TYPE_CHECKING:
    from ipywidgets import VBox
    from PIL.Image import Image

SCHEMA = 2

#: A token's own probability (0 to 1) and margin (of logits).
PROBABILITY_COLUMNS = ("probability", "margin")
_OF_TOKEN = "index id text source step cache_len region device_ms device_ms_p10 device_ms_p90 host_ms"
TOKEN_COLUMNS = (*_OF_TOKEN.split(), *PROBABILITY_COLUMNS)
PHASES = ("prepare", "prefill", "decode", "generate")
#: What stage coverage adds up and divides by the whole prefill.
PREFILL_STAGES = (*VISION_STAGES, "vision_fusion", "language_model", "lm_head", "sampling")

_SPAN_TYPES = {"repeat": "int64", "phase": "str", "stage": "str", "view": "str", "step": "Int64"}


def elsewhere(name: str) -> Any:
    """What a later room has, as ``module.name``, found on first use: the package's only way up."""
    module, _, found = name.rpartition(".")
    return getattr(importlib.import_module(f"ocr_phases.{module}"), found)


class SavedPath(type(Path())):  # type: ignore[misc]
    """The path of a file that was written, which a notebook shows as a link."""

    def _repr_html_(self) -> str:
        from IPython.display import FileLink

        return FileLink(self)._repr_html_()


class RecordedPage(dict[str, Any]):
    """A page of a record, which a notebook shows as its picture and facts."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return elsewhere("show.results_many.recorded_page_bundle")(self)


class Plots:
    """The plots of a result, which name themselves; each is a matplotlib figure that shows itself."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __repr__(self) -> str:
        return ", ".join(f"plot.{name}()" for name in dir(self) if not name.startswith("_"))


def _table(name: str, text: str) -> property:
    shown = f"{text}: `ocr_phases.{name}`."
    return property(lambda run: elsewhere("analyse.stages.Table").of(name, run), doc=shown)


def plot_of(name: str, *parts: str) -> property:
    """The function ``name`` (``module.name``) as a method: it draws a result, or these attributes of it."""

    def bound(plots: Plots) -> Any:
        given = [getattr(plots._result, part) for part in parts] or [plots._result]
        return reduce(MethodType, given, checked()(elsewhere(name)))

    return property(bound)


@hinted
class RunPlots(Plots):
    """The plots of a record: each is a matplotlib figure that shows itself in a notebook.

    A plot of a single axes takes ``ax``, draws there and returns its figure. ``row`` is that of a batch.
    """

    latency = plot_of("show.plots.plot_latency")
    vision = plot_of("show.plots.plot_vision_stages")
    timeline = plot_of("show.plots.plot_phase_timeline")
    memory = plot_of("show.plots.plot_memory")
    roofline = plot_of("show.plots.plot_roofline")
    kernels = plot_of("show.plots.plot_kernels")
    page = plot_of("show.page.plot_page")
    regions = plot_of("show.page.plot_region_types")


@public
@dataclass(frozen=True, eq=False, repr=False)
class PhaseRun:
    """One measurement: ``repeats`` runs of prepare, prefill and decode over the same inputs.

    Reads like a mapping of its headline figures (``run["prefill_ms"]``, see `summary`) and gives its raw
    data as tables (`spans`, `token_table`). A notebook's cell shows it; `plot` has its plots. Fields hold
    plain JSON values except `spans`, and are not to be changed: `dataclasses.replace` makes another run.

    A batch has one entry a row in ``results`` and one a page in ``pages`` (each names its ``row``).
    """

    created: str  # ISO 8601, UTC
    versions: dict[str, Any]
    device: dict[str, Any]
    model: dict[str, Any]
    pages: list[dict[str, Any]]
    request: dict[str, Any]
    results: list[dict[str, Any]]
    spans: pd.DataFrame
    memory: dict[str, Any] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)
    live_checks: list[dict[str, Any]] = field(default_factory=list)
    kernels: dict[str, Any] | None = None  # the kernel view, where one was asked for
    truths: list[dict[str, Any] | None] | None = None  # what each row's page says, where it was given
    probabilities: list[dict[str, Any]] | None = None  # of each row's tokens, where they were asked for
    schema: int = SCHEMA

    def __repr__(self) -> str:
        times = {phase: self[f"{phase}_ms"] for phase in ("prefill", "decode", "generate")}
        shown = ", ".join(f"{phase} {ms:.1f} ms" for phase, ms in times.items() if ms is not None)
        return f"<PhaseRun {self.page['file']} on {self.model['name']}: {self.token_count} tokens, {shown}>"

    # -- headline figures -------------------------------------------------------------------------

    def __getitem__(self, key: str) -> Any:
        if key not in self._summary:
            raise UnknownName(f"A record has no {key!r}.{nearest(str(key), self._summary)}")
        return self._summary[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._summary)

    def keys(self) -> list[str]:
        """The names `summary` gives."""
        return list(self._summary)

    def summary(self) -> dict[str, Any]:
        """Headline figures; times are milliseconds on the device clock, medians over repeats.

        ``page_ms`` is from the page's file to the last token, ``ttft_ms`` (time to first token) prepare plus
        prefill in each repeat; medians need not add up. ``vision_share`` is of the prefill. Inter-token
        latency pools
        the decode steps of all repeats: with N tokens, N-1 steps (N with ``first_token="redecode"``).
        ``tokens_per_s`` counts the tokens decode made for all rows, over the whole decode phase.
        ``stage_coverage`` is the sum of the prefill's stages over the whole prefill. ``compression_ratio`` is
        text tokens over valid image tokens, as the vendor counts both, of the first row: the text is
        tokenised anew, and may then have more tokens than were generated. ``generated_compression_ratio`` is
        of the generated ones. What pages cost is `ocr_phases.analyse.cost.page_cost`.
        """
        return dict(self._summary)

    @cached_property
    def _summary(self) -> dict[str, Any]:
        medians = {key: float(times.median()) for key, times in self._sums["device_ms"].items()}
        prefill, decode = self.repeat_ms("prefill", "prefill"), self.repeat_ms("decode", "decode")
        rows = self.spans[self.spans["stage"] == "decode_step"]
        steps, decoded = rows["device_ms"].to_numpy(), self.decoded_tokens and decode.all()
        vision = np.sum([self.repeat_ms(stage, "prefill") for stage in VISION_STAGES], axis=0)
        stages = np.sum([self.repeat_ms(stage, "prefill") for stage in PREFILL_STAGES], axis=0)
        peaks = self.memory.get("peak_bytes", {})
        valid = sum(page["valid_image_tokens"] for page in self.pages if page["row"] == 0)
        figures = {
            "prefill_ms": medians.get(("prefill", "prefill")),
            "decode_ms": medians.get(("decode", "decode")),
            "tokens": self.token_count,
            "prefill_len": self.request["prefill_len"],
            "page_ms": _quantile(sum(self.repeat_ms(phase, phase) for phase in PHASES)),
            "vision_ms": _quantile(vision) if vision.all() else None,
            "vision_share": _quantile(vision / prefill) if prefill.all() and vision.all() else None,
            **{f"{stage}_ms": medians.get(("prefill", stage)) for stage in VISION_STAGES},
            "text": self.text,
            "prepare_ms": medians.get(("prepare", "prepare")),
            "ttft_ms": _quantile(self.repeat_ms("prepare", "prepare") + prefill) if prefill.all() else None,
            "vision_fusion_ms": medians.get(("prefill", "vision_fusion")),
            "prefill_language_model_ms": medians.get(("prefill", "language_model")),
            "stage_coverage": _quantile(stages / prefill) if prefill.all() and stages.all() else None,
            "decode_steps": int(rows["step"].max()) + 1 if len(rows) else 0,
            "inter_token_ms": _quantile(steps, 0.5),
            "inter_token_ms_p90": _quantile(steps, 0.9),
            "inter_token_ms_p99": _quantile(steps, 0.99),
            "tokens_per_s": _quantile(self.decoded_tokens / decode * 1000.0) if decoded else None,
            "generate_ms": medians.get(("generate", "generate")),
            "prefill_peak_bytes": max(peaks.get("prefill", []), default=None),
            "decode_peak_bytes": max(peaks.get("decode", []), default=None),
            "peak_bytes": max((max(values) for values in peaks.values() if values), default=None),
            "kv_cache_bytes": max(self.cache.get("bytes", []), default=None),
            "text_tokens": self.result.get("text_tokens"),
            "valid_image_tokens": valid,
            "compression_ratio": _ratio(self.result.get("text_tokens"), valid),
            "generated_compression_ratio": _ratio(self.token_count, valid),
        }
        return figures | elsewhere("analyse.cost.page_cost")(self, figures["page_ms"])

    @property
    def page(self) -> dict[str, Any]:
        """The first page, which shows itself in a notebook."""
        return RecordedPage(self.pages[0])

    @property
    def result(self) -> dict[str, Any]:
        """The first row's result: ``ids``, ``token_texts``, ``text``, ``finish_reason``."""
        return self.results[0]

    @property
    def text(self) -> str | None:
        """The first row's text without the end token; None if the record has no text."""
        return self.result["text"]

    @property
    def token_count(self) -> int:
        """Generated tokens of the first row, the end token included."""
        return len(self.result["ids"])

    @cached_property
    def repeats(self) -> list[int]:
        """The numbers of the measured repeats, from 0; reports and sentences count them from 1."""
        return sorted(int(number) for number in self.spans["repeat"].unique())

    # -- tables -----------------------------------------------------------------------------------

    def stage_ms(self, stage: str, phase: str | None = None, clock: str = "device_ms") -> np.ndarray:
        """Times of one stage in ms, float64, one a span, in recorded order (repeat, then step)."""
        here = (self.spans["stage"] == stage) & (self.spans["phase"].isin([phase]) | (phase is None))
        return self.spans.loc[here, clock].to_numpy(dtype=np.float64)

    def repeat_ms(self, stage: str, phase: str, clock: str = "device_ms") -> np.ndarray:
        """Sum of a stage's spans in each repeat, ms, float64 [repeats]; zero without spans."""
        column = (clock, phase, stage)
        return self._sums[column].to_numpy() if column in self._sums else np.zeros(len(self.repeats))

    def tokens_of(self, row: int) -> pd.DataFrame:
        """One row a generated token of batch row ``row``, from 0: columns `TOKEN_COLUMNS`.

        ms are medians over repeats of the decode step that made the token (p10 and p90 beside them);
        missing for a token that came from the prefill. They are rounded to 2^-20 ms (a nanosecond, below what
        clocks resolve), so that sums over tokens are exact in any order. ``region`` is the index of the
        grounding region the token belongs to, -1 before the first. In a batch a step's time is the whole
        batch's. ``probability`` (0 to 1) and ``margin`` (of logits) are those of
        `ocr_phases.analyse.stages.token_probabilities`.
        """
        _nth(self.results, row, "row")
        return elsewhere("analyse.stages.Table").of("analyse.stages.tokens_of", self, row)

    tokens = token_table = property(lambda run: run.tokens_of(0), doc="`tokens_of` the first row.")
    stages = _table("analyse.stages.stage_table", "Time of each phase and its stages")
    regions = _table("analyse.regions.regions_of", "What each region of the first row cost")
    floors = _table("analyse.floors.floor_table", "Each stage beside its floor")
    checks = _table("analyse.checks.checks_table", "Every check, live and of the record")
    repetitions = _table("analyse.repetition.repetition_table", "Text that is repeated, and its time")

    def quality(self, truth: Truth | str | Path | None = None, row: int = 0) -> pd.DataFrame:
        """A row's text against what its page says: `ocr_phases.analyse.quality.quality_table`.

        ``truth`` is as for `with_truth`, by default the record's own.
        """
        run = self if truth is None else self.with_truth(truth, row)
        return elsewhere("analyse.quality.quality_table")(run, run.truth_of(row), row)

    def truth_of(self, row: int = 0) -> Truth | None:
        """What the page of a row says, where the record has it."""
        kept = _nth(self.truths or [None] * len(self.results), row, "row")
        return None if kept is None else msgspec.convert(kept, Truth)

    def page_name(self, row: int = 0) -> str:
        """The file of a row's page, or of its pages (``doc.pdf#1-8``)."""
        files = [str(page["file"]) for page in self.pages if page["row"] == row]
        return files[0] if len(files) == 1 else f"{files[0]}-{split_page(files[-1])[1].removeprefix('#')}"

    def with_truth(self, truth: Truth | str | Path, row: int = 0) -> PhaseRun:
        """The same record with what the page of a row says.

        ``truth`` is that, or a path for `ocr_phases.analyse.quality.load_truth`; raises as that does.
        """
        if _nth(self.results, row, "row")["text"] is None:
            raise OcrPhasesError("This record has no text (return_text=False), so it keeps no truth either.")
        load = elsewhere("analyse.quality.load_truth")
        said = truth if isinstance(truth, Truth) else load(truth, self.page_name(row))
        truths = list(self.truths or [None] * len(self.results))
        truths[row] = json.loads(json.dumps(msgspec.to_builtins(said)))  # lists, as in a file
        return replace(self, truths=truths)

    # -- what it shows ----------------------------------------------------------------------------

    plot = property(RunPlots, doc="The plots of this record.")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return elsewhere("show.results.run_bundle")(self)

    def report(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write this record's report into ``folder`` and return the path of its HTML file.

        An earlier report there is replaced. Raises as `ocr_phases.report.render.page_report` does, so for
        other files in its way, unless ``overwrite``.
        """
        return SavedPath(elsewhere("report.render.page_report")(self, folder, overwrite=overwrite))

    def explore(self) -> VBox:
        """A widget panel with this record: `ocr_phases.explorer.Explorer`."""
        return elsewhere("explorer.Explorer")(runs=[self], bar=False)

    def chrome_trace(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the spans of all repeats for ui.perfetto.dev: `ocr_phases.report.artifacts`.

        Replaces as `save` does.
        """
        return SavedPath(elsewhere("report.artifacts.write_chrome_trace")(self, path, overwrite=overwrite))

    def page_image(self, number: int = 0) -> Image | None:
        """The embedded page as an upright RGB image; None if the record lacks it."""
        return elsewhere("inputs.images.page_image")(self.page_data(number))

    def page_data(self, number: int = 0) -> bytes | None:
        """The embedded page as a file's bytes; None where it was left out, `OcrPhasesError` where damaged."""
        page = _nth(self.pages, number, "page")
        try:
            return None if page.get("data") is None else base64.b64decode(page["data"])
        except ValueError as error:  # no base64
            raise OcrPhasesError(f"The page {page['file']} in this record is damaged ({error}).") from error

    # -- the file ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON values; spans become one list a column."""
        values = self.spans.astype(object).where(self.spans.notna(), None)
        spans = {name: column.tolist() for name, column in values.items()}
        record = {"schema": self.schema} | {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in record.items() if value is not None} | {"spans": spans}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> PhaseRun:
        """The inverse of `to_dict`; `OcrPhasesError` for other content."""
        if not isinstance(record, dict) or "schema" not in record:
            raise OcrPhasesError("This is not an ocr_phases record: it has no schema number.")
        if record["schema"] != SCHEMA:
            other = f"This record has schema {record['schema']!r}, this version reads schema {SCHEMA}"
            raise OcrPhasesError(f"{other}: install the ocr_phases version that wrote it.")
        try:
            check_record(record)
            spans = make_spans(record["spans"])
            check_spans(spans)
        except OcrPhasesError as error:
            raise OcrPhasesError(f"This record is damaged ({error}).") from error
        known = {item.name: record[item.name] for item in fields(cls) if item.name in record}
        return cls(**known | {"spans": spans})

    @classmethod
    def from_json(cls, data: bytes) -> PhaseRun:
        """`from_dict` of a record file's content; `OcrPhasesError` for invalid JSON too."""
        try:
            record = parse_json(data)
        except OcrPhasesError as error:
            raise OcrPhasesError(f"This is not an ocr_phases record: {error}. Give a run.json.") from error
        return cls.from_dict(record)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the record as JSON, atomically; with a name that ends in ``.gz`` compressed by gzip.

        A record or trace of that name is replaced. Raises `OcrPhasesError` where the file cannot be written,
        and where another one is there, unless ``overwrite``.
        """
        data = self.to_json()
        if str(path).endswith(".gz"):
            data = gzip.compress(data, 6, mtime=0)  # 9 takes twice as long and saves a hundredth
        return SavedPath(write_given(path, data, overwrite=overwrite))

    def to_json(self) -> bytes:
        """The record as a file's bytes, the inverse of `from_json`."""
        if not np.isfinite(self.spans.filter(like="_ms").to_numpy()).all():
            raise ValueError("a span without a time cannot be saved")
        text = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        # A file name need not be UTF-8, and what was measured is not lost for it.
        return text.encode("utf-8", "replace") + b"\n"

    @classmethod
    def load(cls, path: str | Path) -> PhaseRun:
        """Read a record that `save` wrote; `OcrPhasesError` for anything else."""
        try:
            return cls.from_json(unpacked(read_regular(Path(path), MOST_BYTES), MOST_BYTES))
        except OSError as error:
            raise OcrPhasesError(f"The record {path} cannot be read ({error.strerror}).") from error
        except OcrPhasesError as error:
            said = str(error)  # which names the file where that cannot be read
            raise OcrPhasesError(said if said.startswith(f"{path} ") else f"{path}: {said}") from error
        except MemoryError as error:
            raise OcrPhasesError(f"{path} takes more memory than there is.") from error

    @property
    def decoded_tokens(self) -> int:
        """Decoded tokens of all rows, each up to its end; surplus tokens are not counted."""
        from_prefill = 0 if self.request.get("first_token") == "redecode" else 1
        return sum(len(result["ids"]) - from_prefill for result in self.results)

    # -- arithmetic -------------------------------------------------------------------------------

    @cached_property
    def _sums(self) -> pd.DataFrame:
        """Sums in ms, a row a repeat, a column a clock, phase and stage."""
        clocks = ["device_ms", "host_ms"]
        return self.spans.pivot_table(clocks, "repeat", ["phase", "stage"], "sum", fill_value=0.0)


def make_spans(spans: dict[str, list[Any]] | list[tuple]) -> pd.DataFrame:
    """A span table from rows, or one list a column; dtypes int64, str, Int64 (``step``) and float64 (ms)."""
    types = dict.fromkeys(SPAN_COLUMNS, "float64") | _SPAN_TYPES
    return pd.DataFrame(spans, columns=list(SPAN_COLUMNS)).astype(types)


def _nth(items: list[Any], number: int, what: str) -> Any:
    """A row or page by its number; `UnknownName` for one that the record does not have."""
    if number not in range(-len(items), len(items)):
        counted = count_text(len(items), what)
        raise UnknownName(f"There is no {what} {number}: the record has {counted}, from 0.")
    return items[number]


def _quantile(values: Any, q: float = 0.5) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None


def _ratio(part: float | None, total: float | None) -> float | None:
    return part / total if part is not None and total else None

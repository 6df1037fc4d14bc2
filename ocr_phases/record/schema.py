"""What a record must hold, declared once: types, ranges, and the counts that have to agree.

Whatever reads a record (analyse, show, report, batch) may rely on this. Entries that are not named
here are kept as they are, as long as they are plain JSON: a later version may have written them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import numpy as np
from msgspec import Meta

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import NO_VIEWS
from ocr_phases.files import conform
from ocr_phases.record.parts import (
    KERNEL_TABLES,
    CachePart,
    CheckPart,
    Count,
    DevicePart,
    KernelsFailed,
    KernelsPart,
    MemoryPart,
    Milliseconds,
    ModelPart,
    PagePart,
    Part,
    Phase,
    PhaseEnergyPart,
    ProbabilitiesPart,
    RequestPart,
    ResultPart,
    StartMilliseconds,
    columns_of,
    separated,
)

if TYPE_CHECKING:
    import pandas as pd

_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Scalar = None | bool | str | _Int64 | Annotated[float, Meta(ge=-1e300, le=1e300)]
_Plain: Any = _Scalar
for _ in range(8):  # levels
    _Plain = _Scalar | list[_Plain] | dict[str, _Plain]


class Plain(TypedDict):  # msgspec keeps how to read a class, and works a union out at every call
    """A value that can be shown and saved again: finite numbers, lists and objects a few levels
    deep.
    """

    value: _Plain


_Edge = Annotated[int, Meta(ge=0, le=999)]


class TrueRegion(msgspec.Struct, frozen=True):
    """A region of a reference text: its label, its box and its text.

    The box is `(x1, y1, x2, y2)` on the grid of 0 to 999, None where it is unknown.
    """

    label: str
    box: tuple[_Edge, _Edge, _Edge, _Edge] | None
    text: str


class Truth(msgspec.Struct, frozen=True):
    """The reference text of a page: what is on it, as Markdown in reading order.

    A record has it as plain JSON (`msgspec.to_builtins`).

    Attributes
    ----------
    text
        The text.
    regions
        Its regions in reading order, where they are known.
    file
        The name of the file that it was read from.
    reference
        Whether another run wrote it: a run then agrees with that one, and is not right or wrong.
    category
        The kind of page, where the file says it.
    ignored
        The labels of regions that the text leaves out. What a run wrote in such regions is left
        out, too.
    """

    text: str
    regions: tuple[TrueRegion, ...] = ()
    file: str = ""
    reference: bool = False
    category: str = ""
    ignored: tuple[str, ...] = ()

    def says(self) -> tuple[Any, ...]:
        """What two reference texts have to share to be one: everything but their names."""
        return self.text, self.regions, self.reference, self.ignored


#: `Truth` as a file has it: nothing may be missing.
KeptTruth = msgspec.defstruct(
    "KeptTruth", [(item.name, item.type) for item in msgspec.structs.fields(Truth)]
)


def as_truth(kept: Any) -> Truth:
    """A `Truth` from what a record's file has of it."""
    return msgspec.convert(msgspec.to_builtins(kept), Truth)


#: A record of 8,000 tokens and 5 repeats has 12 MB.
MOST_BYTES = 400_000_000


class SpanColumns(Part, frozen=True, kw_only=True):
    """The spans, a list for each column: one row per span.

    ``step`` is the decode step (0 is the first decode forward) or None; starts count from the
    repeat's start; all times are milliseconds. On a CPU the device columns equal the host's.
    """

    repeat: Annotated[list[Count], Meta(min_length=1)]
    phase: list[Phase]
    stage: list[str]
    view: list[str]
    step: list[Count | None]
    device_start_ms: list[StartMilliseconds]
    device_ms: list[Milliseconds]
    host_start_ms: list[StartMilliseconds]
    host_ms: list[Milliseconds]


#: The columns of the spans in their order.
SPAN_COLUMNS = tuple(
    item.name for item in msgspec.structs.fields(SpanColumns) if item.name != "unknown"
)


class RecordParts(Part, frozen=True, kw_only=True):
    """All that a record's file holds, besides its schema number."""

    created: str
    versions: dict[str, Any]
    device: DevicePart
    model: ModelPart
    pages: list[PagePart]
    request: RequestPart
    results: Annotated[list[ResultPart], Meta(min_length=1)]
    spans: SpanColumns
    memory: MemoryPart
    cache: CachePart
    live_checks: list[CheckPart]
    kernels: Any = None
    truths: list[KeptTruth | None] | None = None  # type: ignore[valid-type]
    probabilities: list[ProbabilitiesPart] | None = None
    phase_energy: PhaseEnergyPart | None = None


_Columns = dict[str, list[None | bool | int | float | str]]


def read_parts(record: dict[str, Any]) -> RecordParts:
    """The parts of a record's file; `OcrPhasesError` with the entry's name for one that breaks the
    schema.
    """
    parts = conform(separated(record, RecordParts), RecordParts)
    for name, part in record.items():
        if name != "spans":  # whatever else is not named is shown and saved, too
            conform({"value": part}, Plain, name)
    kernels = _read_kernels(record.get("kernels"))
    parts = msgspec.structs.replace(parts, kernels=kernels)
    _check_agreements(parts)
    return parts


def _read_kernels(view: Any) -> KernelsPart | KernelsFailed | None:
    """The entry ``kernels`` of a record.

    It is the kernel view, or the error that stands in its place where the profiler failed, or None
    where no kernel view was asked for.
    """
    if view is None:
        return None
    conform(view, dict[str, Any], "kernels")
    if "error" in view:
        return conform(separated(view, KernelsFailed), KernelsFailed, "kernels")
    kernels = conform(separated(view, KernelsPart), KernelsPart, "kernels")
    for name in KERNEL_TABLES:
        conform(view[name], _Columns, f"kernels.{name}")
    return kernels


def _check_agreements(record: RecordParts) -> None:
    """Raise `OcrPhasesError` where entries of a record contradict each other."""
    _check_rows(record)
    _check_tables(record)
    _check_observations(record)


def _check_rows(record: RecordParts) -> None:
    """Every list with an item for each row has as many; the tokens of a row make its text."""
    rows = len(record.results)
    is_text_only = record.request.preset == NO_VIEWS and rows == 1
    if not record.pages and not is_text_only:
        raise OcrPhasesError(
            "pages: there is none, which only a single prompt without an image may have"
        )
    if record.pages and {page.row for page in record.pages} != set(range(rows)):
        raise OcrPhasesError("pages: they name other rows than results has")
    lists = {
        "request.prompts": record.request.prompts,
        "truths": record.truths,
        "probabilities": record.probabilities,
    }
    for name, items in lists.items():
        if items is not None and len(items) != rows:
            raise OcrPhasesError(f"{name}: results has another number of rows")
    for number, result in enumerate(record.results):
        tokens = len(result.ids)
        if record.probabilities is not None:
            known = record.probabilities[number]
            if len(known.logprobs) != tokens or len(known.margins) != tokens:
                raise OcrPhasesError(f"probabilities[{number}]: the row has another number of ids")
        if len(result.token_texts) != tokens:
            raise OcrPhasesError(f"results[{number}]: ids and token_texts have different lengths")
        if result.text is not None and not "".join(result.token_texts).startswith(result.text):
            raise OcrPhasesError(f"results[{number}].text: its tokens make another one")


def _check_tables(record: RecordParts) -> None:
    """The columns of a table have one length, and a stage stands in the kernel view once."""
    _check_lengths("spans", columns_of(record.spans))
    energy = record.phase_energy
    if energy is not None:
        columns: dict[str, Sequence[Any]] = {
            "phase": energy.phase,
            "calls": energy.calls,
            "seconds": energy.seconds,
            "joules": energy.joules,
        }
        _check_lengths("phase_energy", columns)
    if isinstance(record.kernels, KernelsPart):
        for name in KERNEL_TABLES:
            _check_lengths(f"kernels.{name}", columns_of(getattr(record.kernels, name)))
        stages = record.kernels.stages
        rows = list(zip(stages.phase, stages.stage, stages.view, strict=True))
        if len(set(rows)) < len(rows):
            raise OcrPhasesError("kernels.stages: a stage stands there twice")


def _check_lengths(name: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Raise `OcrPhasesError` where the columns of the table ``name`` have different lengths."""
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise OcrPhasesError(f"{name}: its columns have different lengths")


def _check_observations(record: RecordParts) -> None:
    """The cache has entries for each length, and each phase a peak for each repeat."""
    entries = record.cache.entries or []
    lengths = record.cache.lengths or []
    if len(entries) not in (0, len(lengths)):
        raise OcrPhasesError("cache.entries: lengths has another number of steps")
    repeats = len(set(record.spans.repeat))
    for phase, peaks in (record.memory.peak_bytes or {}).items():
        if len(peaks) != repeats:
            raise OcrPhasesError(f"memory.peak_bytes.{phase}: there are {repeats} repeats")


#: The stages that are the whole of a phase. A server's client does not see a prefill: it waits for
#: the first token, which takes the network, the queue and the preparation of the page, too.
WHOLE_STAGES = {
    "prepare": ("prepare",),
    "prefill": ("prefill", "first_token"),
    "decode": ("decode",),
    "generate": ("generate",),
}


def is_whole_phase(spans: pd.DataFrame) -> pd.Series:
    """Which rows of a table are the whole of their phase; it has ``phase`` and ``stage``."""
    waits = (spans["phase"] == "prefill") & (spans["stage"] == "first_token")
    return (spans["stage"] == spans["phase"]) | waits


def check_spans(spans: pd.DataFrame) -> None:
    """Raise `OcrPhasesError` if a span table cannot come from a measurement.

    Each repeat has a prefill, a wait for the first token or a ``generate`` that took time, all
    repeats the same one, and decode steps from 0 on, once each.
    """
    repeat = spans["repeat"].to_numpy()
    stage = spans["stage"].to_numpy()
    took_time = spans["device_ms"].to_numpy() > 0
    first_work = is_whole_phase(spans).to_numpy() & (stage == _first_work(spans))
    repeats = np.unique(repeat)
    if not np.array_equal(np.unique(repeat[first_work & took_time]), repeats):
        raise OcrPhasesError(
            "spans: not every repeat has the time of its prefill, of its first token or of its "
            "generate()"
        )
    is_step = stage == "decode_step"
    number = spans["step"].to_numpy(dtype="float64", na_value=np.nan)
    numbers = [np.sort(number[is_step & (repeat == one)]) for one in repeats]
    in_order = all(np.array_equal(steps, np.arange(len(steps))) for steps in numbers)
    if not (in_order and took_time[is_step].all()):
        raise OcrPhasesError(
            "spans: the decode steps of a repeat are not 0, 1, 2, ..., each with its time"
        )


def _first_work(spans: pd.DataFrame) -> str:
    """The stage with which the model's work begins in a table of spans; empty where none is."""
    stages = set(spans["stage"])
    for stage in ("prefill", "first_token", "generate"):
        if stage in stages:
            return stage
    return ""


def upgraded(parts: RecordParts) -> RecordParts:
    """A record of schema 2 as one of schema 3.

    What schema 2 called a server's prefill was the client's wait for the first token, unless the
    server told when the prefill began or its worker told the stages.
    """
    spans = parts.spans
    if parts.model.implementation != "server" or _tells_prefill(parts.model.server, spans):
        return parts
    stages = ["first_token" if stage == "prefill" else stage for stage in spans.stage]
    return msgspec.structs.replace(parts, spans=msgspec.structs.replace(spans, stage=stages))


def _tells_prefill(server: Any, spans: SpanColumns) -> bool:
    """Whether a server or its worker told the prefill of a record of schema 2."""
    times = server.get("times") if isinstance(server, dict) else None
    if isinstance(times, list) and times and all(times):
        return True
    in_prefill = {
        stage for phase, stage in zip(spans.phase, spans.stage, strict=True) if phase == "prefill"
    }
    return in_prefill != {"prefill"}

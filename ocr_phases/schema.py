"""What a record must hold, declared once: types, ranges, and the counts that have to agree.

Whatever reads a record (analyse, show, report, batch) may rely on this. Entries that are not named here are
kept as they are, as long as they are plain JSON: a later version may have written them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import numpy as np
import pandas as pd
from msgspec import Meta

from ocr_phases.errors import OcrPhasesError

#: Whole numbers that a double holds exactly, which is more than any count here needs.
Count = Annotated[int, Meta(ge=0, le=2**53)]
AtLeastOne = Annotated[int, Meta(ge=1, le=2**53)]

#: Bytes that a JSON text may take with what is decoded from it, and at most takes for each byte of its kind.
_MOST_MEMORY = 2_000_000_000
_MEMORY = {b"{": 600, b"[": 150, b":": 200, b",": 40}
_CHARACTER = 5

_DEPTH = 8
_Scalar = (
    None
    | bool
    | str
    | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    | Annotated[float, Meta(ge=-1e300, le=1e300)]
)
_Plain: Any = _Scalar
for _ in range(_DEPTH):
    _Plain = _Scalar | list[_Plain] | dict[str, _Plain]


class Plain(TypedDict):
    """A value that can be shown and saved again: finite numbers, lists and objects a few levels deep."""

    value: _Plain


def parse_json(data: bytes) -> Any:
    """The value of a JSON text; `OcrPhasesError`, in words that follow a file's name, for anything else."""
    if _CHARACTER * len(data) + sum(data.count(sign) * each for sign, each in _MEMORY.items()) > _MOST_MEMORY:
        raise OcrPhasesError("it would take more than 2 GB of memory")
    try:
        return msgspec.json.decode(data)
    except MemoryError as error:
        raise OcrPhasesError("it takes more memory than there is") from error
    except RecursionError as error:
        raise OcrPhasesError("its JSON is nested too deeply") from error
    except ValueError as error:  # msgspec's own, and text that is no UTF-8
        raise OcrPhasesError(f"it is not valid JSON ({_sentence(error)})") from error


def conform(value: Any, shape: Any, name: str = "") -> Any:
    """``value`` as the msgspec type ``shape``; entries that this does not name pass.

    Raises `OcrPhasesError` with the entry, below ``name``, and what is wrong with it, as in
    ``pages[0].row: expected int, got str``.
    """
    try:
        return msgspec.convert(value, shape)
    except ValueError as error:  # msgspec's own, and a name that is no Unicode
        raise OcrPhasesError(_sentence(error, name)) from error
    except RecursionError as error:
        raise OcrPhasesError(f"{name}: it is nested too deeply".lstrip(": ")) from error


def shape(kinds: Mapping[str, Any], entries: str, **others: Any) -> Any:
    """The `TypedDict` of ``name:kind`` entries, by their ``kinds``, and of ``others``, by their types.

    A ``?`` behind a name says that the entry may be missing, behind a kind that it may be null.
    """
    hints: dict[str, Any] = {}
    for name, kind in (entry.split(":") for entry in entries.split()):
        hint = kinds[kind.rstrip("?")]
        hint = hint | None if kind.endswith("?") else hint
        hints[name.rstrip("?")] = NotRequired[hint] if name.endswith("?") else hint
    return TypedDict("_Shape", hints | others)  # type: ignore[operator]


_MISSING = "Object missing required field "


def _sentence(error: Exception, name: str = "") -> str:
    """msgspec's message with the entry in front: ``Expected `int`, got `str` - at `$.pages[0].row```."""
    problem, _, path = str(error).replace("`", "").partition(" - at ")
    problem = problem.removeprefix("JSON is malformed: ").replace(" (byte ", " at byte ").removesuffix(")")
    place = name + path.removeprefix("key in ").lstrip("$")
    if problem.startswith(_MISSING):
        place, problem = f"{place}.{problem.removeprefix(_MISSING)}", "it is missing"
    return f"{place.strip('.')}: {problem[:1].lower()}{problem[1:]}".lstrip(": ")


_Edge = Annotated[int, Meta(ge=0, le=999)]


class TrueRegion(msgspec.Struct, frozen=True):
    """A region of a truth: its label, its box `(x1, y1, x2, y2)` on the 0..999 grid, and its text."""

    label: str
    box: tuple[_Edge, _Edge, _Edge, _Edge] | None
    text: str


class Truth(msgspec.Struct, frozen=True):
    """A page's text as Markdown in reading order, and its regions in that order where they are known.

    ``reference`` is true where another run wrote it: a run is in agreement with that, not right or wrong.
    ``category`` is the kind of page, where the truth says it. ``ignored`` are labels of regions that the text
    leaves out: what a run wrote in such regions is left out, too. A record has it as plain JSON
    (`msgspec.to_builtins`).
    """

    text: str
    regions: tuple[TrueRegion, ...] = ()
    file: str = ""
    reference: bool = False
    category: str = ""
    ignored: tuple[str, ...] = ()

    def says(self) -> tuple[Any, ...]:
        """What two truths have to share to be one: all but their names."""
        return self.text, self.regions, self.reference, self.ignored


#: `Truth` as a file has it: nothing may be missing.
KeptTruth = msgspec.defstruct("KeptTruth", [(item.name, item.type) for item in msgspec.structs.fields(Truth)])

#: A record of 8,000 tokens and 5 repeats has 12 MB.
MOST_BYTES = 400_000_000

# Up to 2^33 ms, 99 days: sums of times in steps of 2^-20 ms then fit into a double (`PhaseRun.tokens_of`).
_Ms = Annotated[float, Meta(ge=0, le=2**33)]
_StartMs = Annotated[float, Meta(ge=-(2**33), le=2**33)]
_Rate = Annotated[float, Meta(ge=1, le=1e21)]  # a second
_Seconds = Annotated[float, Meta(ge=0, le=2**24)]
_Share = Annotated[float, Meta(ge=0, le=1.5)]  # ticks of 10 ms may add up to a little more than the whole
_Load = Annotated[float, Meta(ge=0, le=1e6)]
_Positions = Annotated[int, Meta(ge=1, le=2**24)]  # tokens in a prompt or a cache
_Cells = Annotated[int, Meta(ge=1, le=2**10)]
_Logprob = Annotated[float, Meta(le=0)]
_Texts = list[str]
_Times = Annotated[list[Annotated[float, Meta(gt=0, le=2**33)]], Meta(min_length=1)]


class _Taken(TypedDict):
    copied_bytes: Count
    matmul_size: Count
    copy_ms: NotRequired[_Times]
    matmul_ms: NotRequired[_Times]


class _Ceilings(TypedDict):
    bandwidth_bytes_per_s: _Rate | None
    matmul_flops_per_s: _Rate | None
    matmul_dtype: str
    launch_us: NotRequired[_Ms | None]
    taken: NotRequired[_Taken | None]


class _Repeat(TypedDict):
    repeat: Count
    wall_s: _Seconds
    cpu_s: _Seconds
    other_threads_s: NotRequired[_Seconds | None]
    waited_s: _Seconds | None
    others: _Share | None
    steal: _Share | None
    load_start: _Load | None
    load_end: _Load | None


class _GpuState(TypedDict, total=False):
    sm_mhz: Count | None
    max_sm_mhz: Count | None
    throttle_reasons: Count | None
    utilization: Annotated[float, Meta(ge=0, le=100)] | None
    other_processes: Count | None


class _Gpu(TypedDict):
    before: _GpuState | None
    after: _GpuState | None


class _Conditions(TypedDict):
    repeats: list[_Repeat]
    gpu: _Gpu | None


class _Device(TypedDict):
    name: str
    kind: str
    ceilings: NotRequired[_Ceilings | None]
    conditions: NotRequired[_Conditions]
    host_cores: NotRequired[AtLeastOne | None]
    threads: NotRequired[AtLeastOne | None]
    cache_bytes: NotRequired[Count | None]


class _Setup(TypedDict, total=False):
    compile_ms: _Ms | None
    capture_ms: _Ms | None
    prefill_capture_ms: _Ms | None


class _Model(TypedDict):
    name: str
    dtype: str
    config: dict[str, Any]
    source: NotRequired[str]
    revision: NotRequired[str]
    family: NotRequired[str | None]
    implementation: NotRequired[str]
    attention: NotRequired[str | None]
    cuda_calls: NotRequired[str | None]
    strategy: str
    strategy_setup: NotRequired[_Setup | None]
    vision_setup: NotRequired[_Setup | None]


class _Page(TypedDict):
    file: str
    sha256: str
    width: AtLeastOne
    height: AtLeastOne
    row: Count
    preset: str
    grid: Annotated[list[_Cells], Meta(min_length=2, max_length=2)]
    valid_image_tokens: Count
    data: NotRequired[str | None]


class _Infer(TypedDict, total=False):
    do_sample: bool
    temperature: Annotated[float, Meta(gt=0, le=1e6)]
    top_p: Annotated[float, Meta(gt=0, le=1)]
    top_k: Count
    no_repeat_ngram_size: Count
    no_repeat_ngram_window: Count


class _Request(TypedDict):
    prompt: str
    prompts: _Texts
    preset: str
    preset_choice: NotRequired[str]
    max_new_tokens: AtLeastOne
    repeats: AtLeastOne
    warmup: Count
    prefill_len: _Positions
    batch: NotRequired[AtLeastOne]
    infer: NotRequired[_Infer | None]
    grounding: NotRequired[bool | None]
    return_text: NotRequired[bool]
    ignore_eos: NotRequired[bool]
    eos_check_every: NotRequired[AtLeastOne]
    first_token: NotRequired[str]
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    strategy: str
    vision: str
    autocast: NotRequired[bool]
    embed_page: NotRequired[bool]
    generate: NotRequired[bool]
    verify: NotRequired[bool]


class _Result(TypedDict):
    ids: Annotated[list[Count], Meta(min_length=1)]
    token_texts: _Texts
    text: str | None
    finish_reason: NotRequired[str]
    text_tokens: NotRequired[Count | None]


class _Memory(TypedDict, total=False):
    source: str | None
    peak_bytes: dict[str, list[Count]]
    weights_bytes: Count | None


class _Cache(TypedDict, total=False):
    lengths: list[_Positions]
    window: _Positions
    entries: list[_Positions]
    bytes_per_token: Count
    bytes: list[Count]
    max_cache_len: Count | None
    allocated_bytes: Count | None


class _Sureness(TypedDict):
    logprobs: list[_Logprob | None]
    margins: list[float | None]


class _Check(TypedDict):
    name: str
    verdict: NotRequired[str]
    expected: NotRequired[str]
    measured: NotRequired[str]


class _Record(TypedDict):
    created: str
    versions: dict[str, Any]
    device: _Device
    model: _Model
    pages: Annotated[list[_Page], Meta(min_length=1)]
    request: _Request
    results: Annotated[list[_Result], Meta(min_length=1)]
    spans: dict[str, Any]  # `_Spans`
    memory: _Memory
    cache: _Cache
    live_checks: list[_Check]
    kernels: NotRequired[dict[str, Any]]
    truths: NotRequired[list[KeptTruth | None]]  # type: ignore[valid-type]
    probabilities: NotRequired[list[_Sureness]]


# -- spans and the kernel view ----------------------------------------------------------------------

_COLUMN: dict[str, Any] = {
    "count": Count,
    "n": list[Count],
    "rows": Annotated[list[Count], Meta(min_length=1)],
    "step": list[Count | None],
    "text": _Texts,
    "phase": list[Literal["prepare", "prefill", "decode", "generate"]],
    "ms": list[_Ms],
    "start": list[_StartMs],
}


_table = functools.partial(shape, _COLUMN)
_Spans = _table(
    "repeat:rows phase:phase stage:text view:text step:step "
    "device_start_ms:start device_ms:ms host_start_ms:start host_ms:ms"
)

#: One row a span. ``step`` is the decode step (0 is the first decode forward) or missing; starts count from
#: the repeat's start; all times are milliseconds. On a CPU the device columns equal the host's.
SPAN_COLUMNS: tuple[str, ...] = tuple(_Spans.__annotations__)

_KERNEL_TABLES = {
    "stages": "phase:text stage:text view:text kernels:n copies:n launches:n busy_ms:ms host_ms:ms",
    "decode_steps": "step:n",
    "top": "phase:text stage:text kernel:text count:n device_ms:ms",
    "gaps": "phase:text stage:text view:text cause:text longer_than_us:ms count:n idle_ms:ms longest_ms:ms",
    "parts": "phase:text part:text by:text kernels:n busy_ms:ms",
    "host_syncs": "phase:text stage:text call:text operator:text through:text copy:text count:n wait_ms:ms",
}
_Kernels = _table(
    "steps:count", tool=str, **{name: _table(columns) for name, columns in _KERNEL_TABLES.items()}
)
_Columns = dict[str, list[None | bool | int | float | str]]


class _FailedKernels(TypedDict):
    error: str


def check_record(record: dict[str, Any]) -> None:
    """Raise `OcrPhasesError` with the entry's name for a record that breaks this schema."""
    conform(record, _Record)
    conform(record["spans"], _Spans, "spans")
    for name, part in record.items():
        if name != "spans":  # whatever else is not named is shown and saved, too
            conform({"value": part}, Plain, name)
    view = record.get("kernels")
    if view is not None and "error" in view:
        conform(view, _FailedKernels, "kernels")
    elif view is not None:
        conform(view, _Kernels, "kernels")
        for name in _KERNEL_TABLES:
            conform(view[name], _Columns, f"kernels.{name}")
    for what, agrees in _agreements(record):
        if not agrees:
            raise OcrPhasesError(what)


def _agreements(record: dict[str, Any]) -> Any:
    """What has to agree between entries, each with whether it does."""
    results, view = record["results"], record.get("kernels") or {}
    named = {page["row"] for page in record["pages"]}
    yield "pages: they name other rows than results has", named == set(range(len(results)))
    prompts = record["request"]["prompts"]
    yield "request.prompts: results has another number of rows", len(prompts) == len(results)
    yield "truths: results has another number of rows", len(record.get("truths", results)) == len(results)
    sure = record.get("probabilities")
    yield "probabilities: results has another number of rows", sure is None or len(sure) == len(results)
    for number, (row, result) in enumerate(zip(sure or [], results, strict=False)):
        same = {len(row["logprobs"]), len(row["margins"])} == {len(result["ids"])}
        yield f"probabilities[{number}]: the row has another number of ids", same
    for number, result in enumerate(results):
        equal = len(result["ids"]) == len(result["token_texts"])
        yield f"results[{number}]: ids and token_texts have different lengths", equal
        made = result["text"] is None or "".join(result["token_texts"]).startswith(result["text"])
        yield f"results[{number}].text: its tokens make another one", made
    held, lengths = record["cache"].get("entries", []), record["cache"].get("lengths", [])
    yield "cache.entries: lengths has another number of steps", len(held) in (0, len(lengths))
    spans = record["spans"]
    rows = {len(spans[name]) for name in SPAN_COLUMNS}
    yield "spans: its columns have different lengths", len(rows) == 1
    repeats = len(set(spans["repeat"]))
    for phase, peaks in record["memory"].get("peak_bytes", {}).items():
        yield f"memory.peak_bytes.{phase}: there are {repeats} repeats", len(peaks) == repeats
    if "error" in view:
        return
    for name in _KERNEL_TABLES if view else ():
        columns = [len(column) for column in view[name].values() if isinstance(column, list)]
        yield f"kernels.{name}: its columns have different lengths", len(set(columns)) == 1
    if view:
        stages = [view["stages"][name] for name in ("phase", "stage", "view")]
        most = max(Counter(zip(*stages, strict=True)).values(), default=0)
        yield "kernels.stages: a stage stands there twice", most <= 1


def check_spans(spans: pd.DataFrame) -> None:
    """Raise `OcrPhasesError` if a span table cannot come from a measurement.

    Each repeat has a prefill or a ``generate`` that took time, and decode steps from 0 on, once each.
    """
    repeats = spans["repeat"].nunique()
    phases = spans[(spans["stage"] == spans["phase"]) & (spans["device_ms"] > 0)]
    timed = phases.groupby("phase")["repeat"].nunique()
    prefills = ((spans["stage"] == "prefill") & (spans["phase"] == "prefill")).any()
    if timed.get("prefill" if prefills else "generate", 0) != repeats:
        raise OcrPhasesError("spans: not every repeat has the time of its prefill or of its generate()")
    steps = spans[spans["stage"] == "decode_step"]
    numbers = steps.groupby("repeat")["step"].agg(["size", "nunique", "max"])
    counted = (numbers["size"] == numbers["nunique"]) & (numbers["max"] == numbers["size"] - 1)
    if not counted.all() or not (np.asarray(steps["device_ms"]) > 0).all():
        raise OcrPhasesError("spans: the decode steps of a repeat are not 0, 1, 2, ..., each with its time")

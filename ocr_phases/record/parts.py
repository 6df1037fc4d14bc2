"""The parts of a record: what each holds, of which type and in which range.

These classes are the schema: `ocr_phases.record.schema.read_parts` checks a file's content against
them, and names the entry that breaks it. Entries stand in the order of the file; one that may be
missing is None then. What a file has beside the entries that are named here is kept in ``unknown``
and saved again: a later version may have written it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    get_args,
    get_type_hints,
)

import msgspec
from msgspec import Meta, Struct, field

from ocr_phases.errors import Hinted, OcrPhasesError, WrongCall
from ocr_phases.text import nearest

#: Entries of one part, at most: far more than any version of the package writes.
MOST_ENTRIES = 1_000

# Whole numbers are such as a double holds exactly. Times in ms go up to 2^33, 99 days: sums of them
# in steps of 2^-20 ms then fit into a double (`ocr_phases.analyse.stages.tokens_of`).
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Positions = Annotated[int, Meta(ge=1, le=2**24)]  # tokens in a prompt or a cache
Grid = Annotated[list[Annotated[int, Meta(ge=1, le=2**10)]], Meta(min_length=2, max_length=2)]
Milliseconds = Annotated[float, Meta(ge=0, le=2**33)]
# What was timed took some time.
TimedMilliseconds = Annotated[float, Meta(gt=0, le=2**33)]
StartMilliseconds = Annotated[float, Meta(ge=-(2**33), le=2**33)]
Amount = Annotated[float, Meta(ge=0, le=2**24)]  # s, W, J, a load average, a price
Rate = Annotated[float, Meta(ge=1, le=1e21)]  # per second
# Ticks of 10 ms may add up to a little more than the whole.
Share = Annotated[float, Meta(ge=0, le=1.5)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Logprob = Annotated[float, Meta(le=0)]
Phase = Literal["prepare", "prefill", "decode", "generate"]
Times = Annotated[list[TimedMilliseconds], Meta(min_length=1)]
Counts = list[Count]


class Part(Hinted, Struct, kw_only=True, frozen=True):
    """A part of a record, read by attribute. `msgspec.structs.replace` makes a changed one.

    ``unknown`` has the entries of a file that this version does not know.
    """

    unknown: dict[str, Any] = {}

    if not TYPE_CHECKING:  # without the method, a type checker refuses part["key"]

        def __getitem__(self, name: object) -> NoReturn:
            kind = type(self).__name__
            entries = {file_name: attribute for attribute, file_name in _names(type(self))}
            if isinstance(name, str) and name in entries:
                raise WrongCall(
                    f"{kind} is read by attribute: write .{entries[name]} instead of [{name!r}]."
                )
            example = next(iter(entries.values()))
            raise WrongCall(
                f"{kind} is read by attribute, such as .{example}: it has no keys."
                f"{nearest(str(name), entries.values())}"
            )


# -- the device ------------------------------------------------------------------------------------


class CeilingRuns(Part, frozen=True, kw_only=True):
    """What the device's ceilings were measured with: sizes, and the time of each run in ms."""

    copied_bytes: Count
    copy_ms: Times | None = None
    matmul_size: Count
    matmul_ms: Times | None = None


class CeilingsPart(Part, frozen=True, kw_only=True):
    """The best rates that the device reached: bytes per second, FLOP/s, and the time of a launch in
    us.
    """

    bandwidth_bytes_per_s: Rate | None = None
    matmul_flops_per_s: Rate | None = None
    matmul_dtype: str
    launch_us: Milliseconds | None = None
    taken: CeilingRuns | None = None


class RepeatConditions(Part, frozen=True, kw_only=True):
    """What else ran during a repeat: seconds of the wall clock and of the process, shares of the
    machine.
    """

    repeat: Count
    wall_s: Amount
    cpu_s: Amount
    other_threads_s: Amount | None = None
    waited_s: Amount | None = None
    others: Share | None = None
    steal: Share | None = None
    load_start: Amount | None = None
    load_end: Amount | None = None


class GpuState(Part, frozen=True, kw_only=True):
    """A GPU at one moment: clocks in MHz, the driver's bits of reasons to throttle, per cent of
    use.
    """

    sm_mhz: Count | None = None
    max_sm_mhz: Count | None = None
    throttle_reasons: Count | None = None
    utilization: Percent | None = None
    other_processes: Count | None = None


class GpuConditions(Part, frozen=True, kw_only=True):
    """A GPU before and after the repeats, or why both are ``missing``."""

    before: GpuState | None
    after: GpuState | None
    missing: str | None = None


class EnergyPart(Part, frozen=True, kw_only=True):
    """The energy of a repeat in J over so many seconds, and the idle power in W; or why it is
    ``missing``.
    """

    missing: str | None = None
    seconds: Amount | None = None
    run_joules: Amount | None = None
    idle_w: Amount | None = None


class ConditionsPart(Part, frozen=True, kw_only=True):
    """The state of the machine during the measurement."""

    repeats: list[RepeatConditions]
    gpu: GpuConditions | None = None
    energy: EnergyPart | None = None


class DevicePart(Part, frozen=True, kw_only=True):
    """What it ran on; ``kind`` is cpu, cuda, mps or server."""

    name: str
    kind: str
    memory_bytes: Any = None
    cores: Any = None
    cache_bytes: Count | None = None
    host: Any = None
    host_cores: Positive | None = None
    threads: Positive | None = None
    ceilings: CeilingsPart | None = None
    conditions: ConditionsPart | None = None

    @property
    def has_own_clock(self) -> bool:
        """Whether the times of its work are by a clock of its own, and not by the host's."""
        return self.kind in ("cuda", "mps")


# -- the model -------------------------------------------------------------------------------------


class SetupPart(Part, frozen=True, kw_only=True):
    """What preparing a strategy or the encoders took, in ms."""

    max_cache_len: Any = None
    allocated_bytes: Any = None
    compile_ms: Milliseconds | None = None
    capture_ms: Milliseconds | None = None
    prefill_capture_ms: Milliseconds | None = None
    reused: Any = None


class GenerationPart(Part, frozen=True, kw_only=True):
    """What the checkpoint says of generating: its end tokens, and the settings that were taken from
    it.

    Where a run's ``infer`` has such a setting, too, the request's is what was applied.
    """

    end_tokens: list[Count]
    settings: dict[str, Any]


class StagePart(Part, frozen=True, kw_only=True):
    """A stage that the record has spans of.

    ``path`` is the dotted name of its module under the model, None for a stage that is no module.
    ``role`` is one of `ocr_phases.stages.ROLES`. ``inside`` names the stage within whose time this
    one runs, so that no sum takes both.
    """

    name: str
    path: str | None = None
    role: str
    inside: str | None = None


class ModelPart(Part, frozen=True, kw_only=True):
    """Which model it was, and how it ran.

    ``class_name`` stands as ``class`` in the file. ``config`` is the checkpoint's own,
    ``parameters`` are counts by stage, ``stages`` those that the record has spans of,
    ``server`` is what a server tells of itself.
    """

    name: str
    source: str | None = None
    revision: str | None = None
    family: str | None = None
    implementation: str | None = None
    class_name: Any = field(name="class", default=None)
    dtype: str
    attention: str | None = None
    attention_kernels: Any = None
    experts: Any = None
    decode_attention_kernels: Any = None
    decode_experts: Any = None
    strategy: str
    vision: Any = None
    cuda_calls: str | None = None
    parameters: dict[str, Count] | None = None
    config: dict[str, Any]
    generation: GenerationPart | None = None
    stages: list[StagePart] | None = None
    strategy_setup: SetupPart | None = None
    vision_setup: SetupPart | None = None
    server: Any = None


# -- the page, the request and the result ----------------------------------------------------------


class PagePart(Part, frozen=True, kw_only=True):
    """A page of batch row ``row``: its file and hash, its size in pixels, and how the preset cuts
    it.

    ``data`` is its file in base64, where the record holds it. ``image_tokens`` and ``text_tokens``
    are of the whole prompt of its row, which several pages share; ``valid_image_tokens`` are of
    this page alone.
    """

    file: str
    sha256: str
    width: Positive
    height: Positive
    data: str | None = None
    row: Count
    preset: str
    grid: Grid
    image_tokens: Count | None = None
    text_tokens: Count | None = None
    valid_image_tokens: Count | None = None


class InferPart(Part, frozen=True, kw_only=True):
    """How the next token was chosen."""

    do_sample: bool | None = None
    temperature: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Count | None = None
    no_repeat_ngram_size: Count | None = None
    no_repeat_ngram_window: Count | None = None
    whitelist_token_ids: list[Count] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=1e6)] | None = None


class RequestPart(Part, frozen=True, kw_only=True):
    """What was asked for, with every default filled in; ``prompts`` has one for each row.

    ``prefill_len`` is the number of tokens of the prompt; None where a server did not tell.
    ``warmed_before`` says that no warm-up ran, because these shapes had run before.
    """

    prompt: str
    preset: str
    base_size: Positive | None = None
    image_size: Positive | None = None
    crop_mode: bool | None = None
    min_crops: Positive | None = None
    max_crops: Positive | None = None
    max_new_tokens: Positive
    infer: InferPart | None = None
    grounding: bool | None = None
    return_text: bool | None = None
    ignore_eos: bool | None = None
    eos_check_every: Positive | None = None
    first_token: str | None = None
    repeats: Positive
    warmup: Count
    seed: Seed
    strategy: str
    vision: str
    threads: Positive | None = None
    autocast: bool | None = None
    embed_page: bool | None = None
    generate: bool | None = None
    verify: bool | None = None
    price_per_hour: Amount | None = None
    prompts: list[str]
    preset_choice: str | None = None
    prefill_len: Positions | None
    batch: Positive | None = None
    warm_once: bool | None = None
    warmed_before: bool | None = None


class ResultPart(Part, frozen=True, kw_only=True):
    """What a row wrote: ids, the text of each token, and the whole text, None where it was not to
    be kept.

    ``pieces`` says that a server sent no ids: ``ids`` then number its pieces of text, and
    ``token_texts`` are these. ``token_count`` is the number of tokens as the server counts them,
    where the ids do not show it.
    """

    ids: Annotated[list[Count], Meta(min_length=1)]
    token_texts: list[str]
    text: str | None
    finish_reason: str | None = None
    text_tokens: Count | None = None
    pieces: bool | None = None
    token_count: Positive | None = None

    @property
    def known_tokens(self) -> int | None:
        """How many tokens were generated; None where a server did not tell."""
        if self.token_count is not None:
            return self.token_count
        return None if self.pieces else len(self.ids)

    @property
    def least_tokens(self) -> int:
        """How many tokens were generated at least: the pieces of text where a server did not
        tell.
        """
        return self.known_tokens or len(self.ids)


# -- what was observed -----------------------------------------------------------------------------


class MemoryPart(Part, frozen=True, kw_only=True):
    """Peak bytes of each repeat, by phase, and the bytes of the weights."""

    source: str | None = None
    peak_bytes: dict[str, Counts] | None = None
    weights_bytes: Count | None = None


class CachePart(Part, frozen=True, kw_only=True):
    """The KV cache: its length, entries and bytes after the prefill and after each decode step."""

    lengths: list[Positions] | None = None
    bytes_per_token: Count | None = None
    bytes: Counts | None = None
    max_cache_len: Count | None = None
    allocated_bytes: Count | None = None
    window: Positions | None = None
    entries: list[Positions] | None = None


class ProbabilitiesPart(Part, frozen=True, kw_only=True):
    """Log probability of each token of a row, and its logit minus the highest other one; None if
    unknown.
    """

    logprobs: list[Logprob | None]
    margins: list[float | None]


class PhaseEnergyPart(Part, frozen=True, kw_only=True):
    """The energy of phases that were repeated alone: a column each; or why it is ``missing``.

    The counter showed ``joules`` in ``seconds``, in which the phase ran ``calls`` times. A call of
    the decode has ``decode_steps`` steps.
    """

    phase: list[str] = []
    calls: Counts = []
    seconds: list[Amount] = []
    joules: list[Amount] = []
    decode_steps: Count = 0
    idle_w: Amount | None = None
    missing: str | None = None


class CheckPart(Part, frozen=True, kw_only=True):
    """A check of the running measurement, and what came of it."""

    name: str
    verdict: str | None = None
    expected: str | None = None
    measured: str | None = None


# -- the kernel view, tables as lists by column ----------------------------------------------------


class KernelStages(Part, frozen=True, kw_only=True):
    """Kernels, copies, launches and busy time in ms of each stage."""

    phase: list[str]
    stage: list[str]
    view: list[str]
    kernels: Counts
    copies: Counts
    launches: Counts
    busy_ms: list[Milliseconds]
    host_ms: list[Milliseconds]


class KernelSteps(Part, frozen=True, kw_only=True):
    """The decode steps that were profiled."""

    step: Counts


class TopKernels(Part, frozen=True, kw_only=True):
    """The kernels that took longest."""

    phase: list[str]
    stage: list[str]
    kernel: list[str]
    count: Counts
    device_ms: list[Milliseconds]


class KernelGaps(Part, frozen=True, kw_only=True):
    """When the device was idle, by what it waited for."""

    phase: list[str]
    stage: list[str]
    view: list[str]
    cause: list[str]
    longer_than_us: list[Milliseconds]
    count: Counts
    idle_ms: list[Milliseconds]
    longest_ms: list[Milliseconds]


class KernelParts(Part, frozen=True, kw_only=True):
    """Busy time by part of the language model."""

    phase: list[str]
    part: list[str]
    by: list[str]
    kernels: Counts
    busy_ms: list[Milliseconds]


class HostSyncs(Part, frozen=True, kw_only=True):
    """Where the host waited for the device."""

    phase: list[str]
    stage: list[str]
    call: list[str]
    operator: list[str]
    through: list[str]
    copy: list[str]
    count: Counts
    wait_ms: list[Milliseconds]


class KernelsPart(Part, frozen=True, kw_only=True):
    """What a run under the profiler showed, a table for each question."""

    steps: Count
    tool: str
    stages: KernelStages
    decode_steps: KernelSteps
    top: TopKernels
    gaps: KernelGaps
    parts: KernelParts
    host_syncs: HostSyncs
    unattributed: Any = None


#: The tables of the kernel view.
KERNEL_TABLES = ("stages", "decode_steps", "top", "gaps", "parts", "host_syncs")


class KernelsFailed(Part, frozen=True, kw_only=True):
    """Why there is no kernel view, although one was asked for."""

    error: str


# -- from a file and back --------------------------------------------------------------------------

_Part = TypeVar("_Part", bound=Part)
#: What is not plain, or may hold what is not.
_NESTED = (Struct, list, tuple, dict)


@cache
def _names(kind: type[Part]) -> list[tuple[str, str]]:
    """The names of a part's entries: that of the attribute, and that in a file."""
    pairs = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return [pair for pair in pairs if pair[0] != "unknown"]


@cache
def _entries(kind: type[Part]) -> dict[str, type[Part] | None]:
    """The entries of a part by their names in a file, each with the kind of part that it holds."""
    hints = get_type_hints(kind)
    return {file_name: _part_in(hints[name]) for name, file_name in _names(kind)}


def _part_in(hint: Any) -> type[Part] | None:
    """The kind of part that a type is, or has as its items or as one of its choices."""
    if isinstance(hint, type) and issubclass(hint, Part):
        return hint
    for argument in get_args(hint):
        found = _part_in(argument)
        if found is not None:
            return found
    return None


def separated(content: Any, kind: type[Part]) -> Any:
    """The content of a part, or of a list of parts, its unknown entries moved below ``unknown``.

    Raises `OcrPhasesError` for a part of more than `MOST_ENTRIES` entries.
    """
    if isinstance(content, list):
        return [separated(item, kind) for item in content]
    if not isinstance(content, dict):
        return content
    if len(content) > MOST_ENTRIES:
        raise OcrPhasesError(
            f"it has {len(content):,} entries in one part, where {MOST_ENTRIES:,} are the most"
        )
    entries = _entries(kind)
    known: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for name, value in content.items():
        if name not in entries:
            unknown[name] = value
            continue
        part = entries[name]
        known[name] = value if part is None else separated(value, part)
    if unknown:
        known["unknown"] = unknown
    return known


def known_entries(value: Any) -> Any:
    """A part as plain JSON values, without the entries that are None at any depth."""
    plain = to_plain(value)
    if isinstance(plain, dict):
        return {name: known_entries(entry) for name, entry in plain.items() if entry is not None}
    return plain


def columns_of(table: Part) -> dict[str, list[Any]]:
    """The columns of a table by name, those that this version does not know last."""
    columns: dict[str, list[Any]] = {}
    for name, file_name in _names(type(table)):
        columns[file_name] = getattr(table, name)
    return columns | table.unknown


def make_part(kind: type[_Part], content: Mapping[str, Any]) -> _Part:
    """A part of this kind from plain values as a file has them, which are not checked."""
    return _made(separated(dict(content), kind), kind)


def make_kernels(view: Mapping[str, Any] | None) -> KernelsPart | KernelsFailed | None:
    """The kernel view from plain values, or why there is none; None where none was asked for."""
    if view is None:
        return None
    if "error" in view:
        return make_part(KernelsFailed, view)
    return make_part(KernelsPart, view)


def _made(content: Any, kind: type[Part] | None) -> Any:
    """Parts in place of the plain values that stand for them."""
    if kind is None or not isinstance(content, dict | list):
        return content
    if isinstance(content, list):
        return [_made(item, kind) for item in content]
    entries = _entries(kind)
    values: dict[str, Any] = {}
    for name, file_name in _names(kind):
        if file_name in content:
            values[name] = _made(content[file_name], entries[file_name])
    if "unknown" in content:
        values["unknown"] = content["unknown"]
    return kind(**values)


def to_plain(value: Any) -> Any:
    """A part, or lists and dicts of parts, as plain JSON values: the inverse of reading them."""
    if isinstance(value, Part):
        plain: dict[str, Any] = {}
        for name, file_name in _names(type(value)):
            plain[file_name] = to_plain(getattr(value, name))
        return plain | value.unknown
    if isinstance(value, list | tuple):
        if not any(isinstance(item, _NESTED) for item in value):
            return value  # most lists are long and hold numbers or texts
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, Struct):
        return to_plain(msgspec.to_builtins(value))
    return value

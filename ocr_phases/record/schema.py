"""What a record must hold, declared once: types, ranges, and the counts that have to agree.

Whatever reads a record (analyse, show, report, batch) may rely on this. Entries that are not named here are
kept as they are, as long as they are plain JSON: a later version may have written them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from ocr_phases.errors import OcrPhasesError, require

if TYPE_CHECKING:
    import pandas as pd

#: Bytes that a JSON text may take with what is decoded from it, and at most takes for each byte (counted as
#: b"") and for each of these.
_MOST_MEMORY = 2_000_000_000
_MEMORY = {b"": 5, b"{": 600, b"[": 150, b":": 200, b",": 40}

_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Scalar = None | bool | str | _Int64 | Annotated[float, Meta(ge=-1e300, le=1e300)]
_Plain: Any = _Scalar
for _ in range(8):  # levels
    _Plain = _Scalar | list[_Plain] | dict[str, _Plain]


class Plain(TypedDict):  # msgspec keeps how to read a class, and works a union out at every call
    """A value that can be shown and saved again: finite numbers, lists and objects a few levels deep."""

    value: _Plain


def parse_json(data: bytes) -> Any:
    """The value of a JSON text; `OcrPhasesError`, in words that follow a file's name, for anything else."""
    if sum(data.count(sign) * each for sign, each in _MEMORY.items()) > _MOST_MEMORY:
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


_ENTRY = re.compile(r"(\w+)(\??):(\w+)([?*+]*)")


def shape(kinds: Mapping[str, Any], entries: str, **others: Any) -> Any:
    """The `TypedDict` of ``name:kind`` entries, by their ``kinds``, and of ``others``, by their types.

    A ``?`` behind a name says that the entry may be missing. Behind a kind, ``?`` says that it may be null,
    ``*`` that it is a list of that, and ``+`` a list of at least one.
    """
    hints: dict[str, Any] = {}
    for name, missing, kind, marks in _ENTRY.findall(entries):
        hint = kinds[kind]
        for mark in marks:
            least = Meta(min_length=1 if mark == "+" else 0)
            hint = hint | None if mark == "?" else Annotated[list.__class_getitem__(hint), least]
        hints[name] = NotRequired[hint] if missing else hint
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

#: What the entries of a record are. Whole numbers are such as a double holds exactly, times in ms up to 2^33,
#: 99 days: sums of them in steps of 2^-20 ms then fit into a double (`Record.tokens_of`).
KINDS: dict[str, Any] = {
    "flag": bool,
    "text": str,
    "object": dict[str, Any],
    "number": float,
    "count": Annotated[int, Meta(ge=0, le=2**53)],
    "some": Annotated[int, Meta(ge=1, le=2**53)],
    "seed": _Int64,
    "positions": Annotated[int, Meta(ge=1, le=2**24)],  # tokens in a prompt or a cache
    "cells": Annotated[list[Annotated[int, Meta(ge=1, le=2**10)]], Meta(min_length=2, max_length=2)],
    "ms": Annotated[float, Meta(ge=0, le=2**33)],
    "time": Annotated[float, Meta(gt=0, le=2**33)],  # ms, of what was timed
    "start": Annotated[float, Meta(ge=-(2**33), le=2**33)],
    "amount": Annotated[float, Meta(ge=0, le=2**24)],  # s, W, J, a load average, a price
    "rate": Annotated[float, Meta(ge=1, le=1e21)],  # a second
    # Ticks of 10 ms may add up to a little more than the whole.
    "share": Annotated[float, Meta(ge=0, le=1.5)],
    "percent": Annotated[float, Meta(ge=0, le=100)],
    "temperature": Annotated[float, Meta(gt=0, le=1e6)],
    "top_p": Annotated[float, Meta(gt=0, le=1)],
    "logprob": Annotated[float, Meta(le=0)],
    "phase": Literal["prepare", "prefill", "decode", "generate"],
    "peaks": dict[str, list[Annotated[int, Meta(ge=0, le=2**53)]]],  # bytes of each repeat, by phase
    "sizes": dict[str, Annotated[int, Meta(ge=0, le=2**53)]],  # parameters by stage
    "truth": KeptTruth,
}
#: The parts of a record, in which those above them are kinds, too.
_PARTS = {
    "taken": "copied_bytes:count matmul_size:count copy_ms?:time+ matmul_ms?:time+",
    "ceilings": """bandwidth_bytes_per_s:rate? matmul_flops_per_s:rate? matmul_dtype:text launch_us?:ms?
        taken?:taken?""",
    "repeat": """repeat:count wall_s:amount cpu_s:amount other_threads_s?:amount? waited_s:amount?
        others:share? steal:share? load_start:amount? load_end:amount?""",
    "gpu_state": """sm_mhz?:count? max_sm_mhz?:count? throttle_reasons?:count? utilization?:percent?
        other_processes?:count?""",
    "gpu": "before:gpu_state? after:gpu_state?",
    "energy": "missing?:text seconds?:amount run_joules?:amount idle_w?:amount",
    "conditions": "repeats:repeat* gpu:gpu? energy?:energy",
    "device": """name:text kind:text ceilings?:ceilings? conditions?:conditions host_cores?:some?
        threads?:some? cache_bytes?:count?""",
    "setup": "compile_ms?:ms? capture_ms?:ms? prefill_capture_ms?:ms?",
    "model": """name:text dtype:text config:object source?:text revision?:text family?:text?
        implementation?:text attention?:text? cuda_calls?:text? strategy:text strategy_setup?:setup?
        vision_setup?:setup? parameters?:sizes?""",
    "page": """file:text sha256:text width:some height:some row:count preset:text grid:cells
        valid_image_tokens:count data?:text?""",
    "infer": """do_sample?:flag temperature?:temperature top_p?:top_p top_k?:count
        no_repeat_ngram_size?:count no_repeat_ngram_window?:count""",
    "request": """prompt:text prompts:text* preset:text preset_choice?:text max_new_tokens:some repeats:some
        warmup:count prefill_len:positions batch?:some infer?:infer? grounding?:flag? return_text?:flag
        ignore_eos?:flag eos_check_every?:some first_token?:text seed:seed strategy:text vision:text
        autocast?:flag embed_page?:flag generate?:flag verify?:flag price_per_hour?:amount?""",
    "result": "ids:count+ token_texts:text* text:text? finish_reason?:text text_tokens?:count?",
    "memory": "source?:text? peak_bytes?:peaks weights_bytes?:count?",
    "cache": """lengths?:positions* window?:positions entries?:positions* bytes_per_token?:count bytes?:count*
        max_cache_len?:count? allocated_bytes?:count?""",
    "sureness": "logprobs:logprob?* margins:number?*",
    "check": "name:text verdict?:text expected?:text measured?:text",
    "spans": """repeat:count+ phase:phase* stage:text* view:text* step:count?* device_start_ms:start*
        device_ms:ms* host_start_ms:start* host_ms:ms*""",
    "record": """created:text versions:object device:device model:model pages:page+ request:request
        results:result+ spans:spans memory:memory cache:cache live_checks:check* kernels?:object
        truths?:truth?* probabilities?:sureness*""",
    "stages": """phase:text* stage:text* view:text* kernels:count* copies:count* launches:count* busy_ms:ms*
        host_ms:ms*""",
    "decode_steps": "step:count*",
    "top": "phase:text* stage:text* kernel:text* count:count* device_ms:ms*",
    "gaps": """phase:text* stage:text* view:text* cause:text* longer_than_us:ms* count:count* idle_ms:ms*
        longest_ms:ms*""",
    "parts": "phase:text* part:text* by:text* kernels:count* busy_ms:ms*",
    "host_syncs": """phase:text* stage:text* call:text* operator:text* through:text* copy:text* count:count*
        wait_ms:ms*""",
    "kernels": """steps:count tool:text stages:stages decode_steps:decode_steps top:top gaps:gaps parts:parts
        host_syncs:host_syncs""",
    "no_kernels": "error:text",
}
for _name, _entries in _PARTS.items():
    KINDS[_name] = shape(KINDS, _entries)
_KERNEL_TABLES = ("stages", "decode_steps", "top", "gaps", "parts", "host_syncs")
_Columns = dict[str, list[None | bool | int | float | str]]

#: One row a span. ``step`` is the decode step (0 is the first decode forward) or missing; starts count from
#: the repeat's start; all times are milliseconds. On a CPU the device columns equal the host's.
SPAN_COLUMNS: tuple[str, ...] = tuple(KINDS["spans"].__annotations__)


def check_record(record: dict[str, Any]) -> None:
    """Raise `OcrPhasesError` with the entry's name for a record that breaks this schema."""
    conform(record, KINDS["record"])
    for name, part in record.items():
        if name != "spans":  # whatever else is not named is shown and saved, too
            conform({"value": part}, Plain, name)
    view = record.get("kernels", {"error": ""})
    conform(view, KINDS["no_kernels" if "error" in view else "kernels"], "kernels")
    tables = {f"kernels.{name}": view[name] for name in _KERNEL_TABLES if "error" not in view}
    for name, table in tables.items():
        conform(table, _Columns, name)
    tables["spans"] = {name: record["spans"][name] for name in SPAN_COLUMNS}
    require(_agreements(record, tables))


def _agreements(record: dict[str, Any], tables: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """What has to agree between entries, each with whether it does."""
    results, repeats = record["results"], len(set(record["spans"]["repeat"]))
    named = {page["row"] for page in record["pages"]}
    yield "pages: they name other rows than results has", named == set(range(len(results)))
    listed: dict[str, Any] = {"request.prompts": record["request"]["prompts"]}
    listed |= {name: record[name] for name in ("truths", "probabilities") if name in record}
    for name, rows in listed.items():
        yield f"{name}: results has another number of rows", len(rows) == len(results)
    for number, (row, result) in enumerate(zip(listed.get("probabilities", ()), results, strict=False)):
        same = {len(row["logprobs"]), len(row["margins"])} == {len(result["ids"])}
        yield f"probabilities[{number}]: the row has another number of ids", same
    for number, result in enumerate(results):
        equal = len(result["ids"]) == len(result["token_texts"])
        yield f"results[{number}]: ids and token_texts have different lengths", equal
        made = result["text"] is None or "".join(result["token_texts"]).startswith(result["text"])
        yield f"results[{number}].text: its tokens make another one", made
    held, lengths = record["cache"].get("entries", []), record["cache"].get("lengths", [])
    yield "cache.entries: lengths has another number of steps", len(held) in (0, len(lengths))
    for table, columns in tables.items():
        yield f"{table}: its columns have different lengths", len(set(map(len, columns.values()))) == 1
    for phase, peaks in record["memory"].get("peak_bytes", {}).items():
        yield f"memory.peak_bytes.{phase}: there are {repeats} repeats", len(peaks) == repeats
    if stages := tables.get("kernels.stages"):
        rows = list(zip(stages["phase"], stages["stage"], stages["view"], strict=True))
        yield "kernels.stages: a stage stands there twice", len(set(rows)) == len(rows)


def check_spans(spans: pd.DataFrame) -> None:
    """Raise `OcrPhasesError` if a span table cannot come from a measurement.

    Each repeat has a prefill or a ``generate`` that took time, and decode steps from 0 on, once each.
    """
    phases = spans[(spans["stage"] == spans["phase"]) & (spans["device_ms"] > 0)]
    timed = phases.groupby("phase")["repeat"].nunique()
    prefills = ((spans["stage"] == "prefill") & (spans["phase"] == "prefill")).any()
    if timed.get("prefill" if prefills else "generate", 0) != spans["repeat"].nunique():
        raise OcrPhasesError("spans: not every repeat has the time of its prefill or of its generate()")
    steps = spans[spans["stage"] == "decode_step"].sort_values(["repeat", "step"])
    counted = (steps["step"] == steps.groupby("repeat").cumcount()) & (steps["device_ms"] > 0)
    if not counted.fillna(value=False).all():
        raise OcrPhasesError("spans: the decode steps of a repeat are not 0, 1, 2, ..., each with its time")

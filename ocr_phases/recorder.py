"""From finished runs to a `PhaseRun`: the parts of the record that say what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocr_phases import record
from ocr_phases.collectors import machine
from ocr_phases.collectors.live_checks import Verdict, host_syncs_check, merged
from ocr_phases.collectors.probabilities import Sureness
from ocr_phases.inputs.packing import PageInputs, valid_image_tokens
from ocr_phases.models.caches import cache_bytes_per_token
from ocr_phases.models.load import Checkpoint, token_texts
from ocr_phases.record import PhaseRun
from ocr_phases.settings import Request
from ocr_phases.steps import phases
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.execution import decode_experts
from ocr_phases.text import count_text

#: Settings of what is measured after the repeats.
_AFTERWARDS = ("verify", "token_probabilities", "kernels", "ceilings")


@dataclass(frozen=True)
class Run:
    """What one run of a request leaves behind, before it is a record.

    Pages and inputs are those of the first repeat, None in others. The decode state is not kept: it holds a
    KV cache, which later repeats would count in their peak memory.
    """

    ids: list[list[int]]  # of each row
    spans: list[tuple]
    peaks: dict[str, int | None]  # bytes, by phase
    verdicts: dict[str, Verdict]  # of the checks that need the live model
    cache: dict[str, Any]  # as the record has it
    waits: tuple[int, int] | None  # of the host in decode, and its steps; counted in a warm-up on CUDA only
    packed: PageInputs | None
    pages: list[list[tuple]] | None  # (image, bytes, name) of each page, a list a row


def cache_of(state: phases.DecodeState | None, window: int | None, step: StaticStep | None) -> dict[str, Any]:
    """The record's part about the KV cache, after the prefill and each step; ``generate()`` has no state."""
    lengths, entries, each = [], [], 0
    if state is not None:
        lengths, entries, each = state.lengths, state.entries, cache_bytes_per_token(state.cache)
    room = None if step is None else step.max_cache_len
    return {
        "lengths": lengths,
        # Of the tokens seen a window keeps the prompt's and the last generated ones.
        **({} if window is None else {"window": window, "entries": entries}),
        "bytes_per_token": each,
        "bytes": [held * each for held in entries],
        # A static cache's size, which is there from the start.
        "max_cache_len": room,
        "allocated_bytes": None if room is None else room * each,
    }


def make_record(
    checkpoint: Checkpoint,
    request: Request,
    runs: Sequence[Run],
    memory_source: str | None,
    setup: dict[str, Any],
    conditions: dict[str, Any],
    after: dict[str, Any],
) -> PhaseRun:
    """One record of all measured ``runs`` of a request, which may be fewer than it asks for.

    ``setup`` says what making the strategy ready took, apart from every measured time (`Setup.described`).
    ``after`` has what was measured beside the runs, as far as it came, by its setting: the ``parity`` check
    under ``verify``, and under ``waits`` those of a warm-up run.
    """
    first = runs[0]
    rows, packed = rows_until_end(checkpoint, request, first), first.packed
    assert packed is not None
    sureness: Sequence[Sureness] | None = after.get("token_probabilities")
    checks = [*_checks(runs), after.get("verify"), _interrupted(runs, request, after)]
    if not request.generate:
        waits, kernels = after.get("waits"), after.get("kernels")
        syncs = host_syncs_check(waits, kernels, request.eos_check_every, checkpoint.device)
        checks.insert(-2, syncs)
    columns = zip(*(span for run in runs for span in run.spans), strict=True)
    phases_with_peak = [phase for phase, peak in first.peaks.items() if peak is not None]
    return PhaseRun(
        created=machine.now(),
        versions=machine.versions(),
        device={
            **machine.describe_device(checkpoint.device),
            "conditions": conditions,
            "ceilings": after.get("ceilings"),
        },
        model={**_describe_model(checkpoint, request), **setup},
        pages=_describe_pages(request, packed, first.pages or []),
        request={
            **request.described(),
            "repeats": len(runs),
            "prefill_len": packed.prefill_len,
            "batch": packed.batch_size,
        },
        results=[_describe_row(checkpoint, request, ids) for ids in rows],
        spans=record.make_spans(dict(zip(record.SPAN_COLUMNS, map(list, columns), strict=True))),
        memory={
            "source": memory_source,
            "peak_bytes": {phase: [run.peaks[phase] for run in runs] for phase in phases_with_peak},
            "weights_bytes": sum(p.numel() * p.element_size() for p in checkpoint.model.parameters()),
        },
        cache=first.cache,
        live_checks=[check for check in checks if check is not None],
        kernels=after.get("kernels"),
        probabilities=None if sureness is None else [row._asdict() for row in sureness],
    )


def rows_until_end(checkpoint: Checkpoint, request: Request, run: Run) -> list[list[int]]:
    """A run's ids, each row up to its end token."""
    eos = () if request.ignore_eos else (checkpoint.eos_id,)
    return [phases.until_end(ids, eos) for ids in run.ids]


def _describe_row(checkpoint: Checkpoint, request: Request, ids: list[int]) -> dict[str, Any]:
    ended = not request.ignore_eos and ids[-1] == checkpoint.eos_id
    written = ids[:-1] if ended else ids
    # The end token apart: a character still incomplete before it belongs to the text.
    parts = written, ids[len(written) :]
    texts = [text for part in parts for text in token_texts(checkpoint.tokenizer, part)]
    return {
        "ids": ids,
        "token_texts": texts if request.return_text else [""] * len(ids),
        "text": "".join(texts[: len(written)]) if request.return_text else None,
        # As the vendor counts them: the output, end token included, tokenised again.
        "text_tokens": len(checkpoint.encode("".join(texts))),
        "finish_reason": "eos" if ended else "length",
    }


def _describe_pages(
    request: Request, packed: PageInputs, rows: Sequence[Sequence[tuple]]
) -> list[dict[str, Any]]:
    pages = [(row, *page) for row, given in enumerate(rows) for page in given]
    return [
        {
            **record.describe_page(image, data, name, embed=request.embed_page),
            "row": row,
            "preset": request.preset,
            "grid": list(view.grid),
            "image_tokens": packed.image_tokens[row],
            "text_tokens": packed.text_tokens[row],
            "valid_image_tokens": valid_image_tokens(view.preset, view.size, view.grid),
        }
        for (row, image, data, name), view in zip(pages, packed.views, strict=True)
    ]


def _describe_model(checkpoint: Checkpoint, request: Request) -> dict[str, Any]:
    model = checkpoint.model
    return {
        "name": checkpoint.name,
        "source": checkpoint.source,
        "revision": checkpoint.revision,
        "family": checkpoint.family.name,
        "implementation": checkpoint.family.implementation,
        "class": type(model).__name__,
        "dtype": str(checkpoint.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "attention_kernels": machine.attention_kernels(checkpoint.device),
        "experts": getattr(model.config.get_text_config(), "_experts_implementation", None),
        "decode_attention_kernels": machine.attention_kernels(checkpoint.device, request.strategy),
        "decode_experts": decode_experts(model, request.strategy).get("text_config"),
        "strategy": request.strategy,
        "vision": request.vision,
        "cuda_calls": checkpoint.cuda_calls,
        "parameters": checkpoint.family.parameters(model),
        "config": checkpoint.config,
    }


def _checks(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the repeats agree on, and what was seen of the live model."""
    same = all(run.ids == runs[0].ids for run in runs)
    return [
        {
            "name": "repeats_agree",
            "verdict": "pass" if same else "fail",
            "measured": f"{len(runs)} repeats, {'equal' if same else 'different'} tokens",
        },
        *merged([run.verdicts for run in runs]),
    ]


def _interrupted(runs: Sequence[Run], request: Request, after: Mapping[str, Any]) -> dict[str, Any] | None:
    """A note on what is missing where the measurement was stopped."""
    missing = [name for name in _AFTERWARDS if getattr(request, name) and name not in after]
    if len(runs) == request.repeats and not missing:
        return None
    measured = f"{len(runs)} of {count_text(request.repeats, 'repeat')}"
    return {
        "name": "interrupted",
        "verdict": "note",
        "measured": f"{measured}, without {', '.join(missing)}" if missing else measured,
    }

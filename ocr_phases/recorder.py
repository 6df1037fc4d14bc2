"""From finished runs to a `PhaseRun`: the parts of the record that say what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ocr_phases import record
from ocr_phases.collectors import machine
from ocr_phases.collectors.live_checks import host_syncs_check, merged
from ocr_phases.collectors.probabilities import Sureness
from ocr_phases.collectors.run import Run
from ocr_phases.inputs.packing import valid_image_tokens
from ocr_phases.models.load import Checkpoint, token_texts
from ocr_phases.record import PhaseRun
from ocr_phases.settings import Request
from ocr_phases.steps import phases
from ocr_phases.steps.execution import decode_experts
from ocr_phases.text import count_text

#: Settings of what is measured after the repeats.
_AFTERWARDS = ("verify", "token_probabilities", "kernels", "ceilings")


def make_record(
    checkpoint: Checkpoint,
    request: Request,
    runs: Sequence[Run],
    memory_source: str | None,
    setup: dict[str, Any],
    conditions: dict[str, Any],
    waits: tuple[int, int] | None,
    after: dict[str, Any],
) -> PhaseRun:
    """One record of all measured ``runs`` of a request, which may be fewer than it asks for.

    ``setup`` says what making the strategy ready took, apart from every measured time (`Setup.described`);
    ``waits`` are the host's in the steps of a warm-up run, and these steps, where they were counted.
    ``after`` has what was measured after the runs, as far as it came, by its setting: the ``parity`` check
    under ``verify``.
    """
    first = runs[0]
    rows = rows_until_end(checkpoint, request, first)
    sureness: Sequence[Sureness] | None = after.get("token_probabilities")
    checks = [*_checks(runs), after.get("verify"), _interrupted(runs, request, after)]
    if not request.generate:
        syncs = host_syncs_check(waits, after.get("kernels"), request.eos_check_every, checkpoint.device)
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
        pages=_describe_pages(request, first),
        request={
            **request.described(),
            "repeats": len(runs),
            "prefill_len": first.packed.prefill_len,
            "batch": first.packed.batch_size,
        },
        results=[_describe_row(checkpoint, request, ids) for ids in rows],
        spans=record.make_spans(dict(zip(record.SPAN_COLUMNS, map(list, columns), strict=True))),
        memory={
            "source": memory_source,
            "peak_bytes": {phase: [run.peaks[phase] for run in runs] for phase in phases_with_peak},
            "weights_bytes": sum(p.numel() * p.element_size() for p in checkpoint.model.parameters()),
        },
        cache={
            "lengths": first.lengths,
            # Of the tokens seen a window keeps the prompt's and the last generated ones.
            **({} if first.window is None else {"window": first.window, "entries": first.entries}),
            "bytes_per_token": first.bytes_per_token,
            "bytes": [entries * first.bytes_per_token for entries in first.entries],
            # A static cache's size, which is there from the start.
            "max_cache_len": first.max_cache_len,
            "allocated_bytes": None
            if first.max_cache_len is None
            else first.max_cache_len * first.bytes_per_token,
        },
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


def _describe_pages(request: Request, run: Run) -> list[dict[str, Any]]:
    described = []
    views = iter(run.packed.views)
    for row, pages in enumerate(run.pages):
        for image, data, name in pages:
            view = next(views)
            described.append(
                {
                    **record.describe_page(image, data, name, embed=request.embed_page),
                    "row": row,
                    "preset": request.preset,
                    "grid": list(view.grid),
                    "image_tokens": run.packed.image_tokens[row],
                    "text_tokens": run.packed.text_tokens[row],
                    "valid_image_tokens": valid_image_tokens(view.preset, view.size, view.grid),
                }
            )
    return described


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

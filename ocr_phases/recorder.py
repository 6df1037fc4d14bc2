"""From finished runs to a `PhaseRun`: the parts of the record that say what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ocr_phases import record
from ocr_phases.collectors import machine
from ocr_phases.collectors.live_checks import host_syncs_check, merged
from ocr_phases.collectors.probabilities import Sureness
from ocr_phases.collectors.run import Run
from ocr_phases.inputs.packing import valid_image_tokens
from ocr_phases.inputs.request import Request
from ocr_phases.record import PhaseRun
from ocr_phases.steps import phases
from ocr_phases.steps.execution import decode_experts
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from ocr_phases.models.load import LoadedModel

_REPLACEMENT = "ï¿½"  # U+FFFD as byte-level tokenizers spell it, a character a byte

#: Settings of what is measured after the repeats.
_AFTERWARDS = ("verify", "token_probabilities", "kernels", "ceilings")


def make_record(
    session: LoadedModel,
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
    sureness: Sequence[Sureness] | None = after.get("token_probabilities")
    checks = [*_checks(runs), after.get("verify"), _interrupted(runs, request, after)]
    if not request.generate:
        syncs = host_syncs_check(waits, after.get("kernels"), request.eos_check_every, session.device)
        checks.insert(-2, syncs)
    columns = zip(*(span for run in runs for span in run.spans), strict=True)
    phases_with_peak = [phase for phase, peak in first.peaks.items() if peak is not None]
    return PhaseRun(
        created=machine.now(),
        versions=machine.versions(),
        device={
            **machine.describe_device(session.device),
            "conditions": conditions,
            "ceilings": after.get("ceilings"),
        },
        model={**_describe_model(session, request), **setup},
        pages=_describe_pages(request, first),
        request={
            **request.described(),
            "repeats": len(runs),
            "prefill_len": first.packed.prefill_len,
            "batch": first.packed.batch_size,
        },
        results=[_describe_row(session, request, ids) for ids in rows_until_end(session, request, first)],
        spans=record.make_spans(dict(zip(record.SPAN_COLUMNS, map(list, columns), strict=True))),
        memory={
            "source": memory_source,
            "peak_bytes": {phase: [run.peaks[phase] for run in runs] for phase in phases_with_peak},
            "weights_bytes": sum(p.numel() * p.element_size() for p in session.model.parameters()),
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


def rows_until_end(session: LoadedModel, request: Request, run: Run) -> list[list[int]]:
    """A run's ids, each row up to its end token."""
    eos = () if request.ignore_eos else (session.eos_id,)
    return [phases.until_end(ids, eos) for ids in run.ids]


class TokenReader:
    """The text each id adds, one id at a time; joined they are the decoded text, special tokens included.

    A character spread over several tokens belongs to the one that completes it; an id the tokenizer has no
    text for shows as ``<id>``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # what decodes into the text in front of the next
        self._waiting: list[int] = []

    def read(self, token: int, *, last: bool = False) -> str:
        """The text ``token`` adds: nothing while a character is incomplete, unless it is the ``last``."""
        known = token < len(self._tokenizer)
        if known:
            self._waiting.append(token)
        before = self._tokenizer.decode(self._before)
        now = self._tokenizer.decode(self._before + self._waiting)
        if not known:
            self._before, self._waiting = [], []
            return f"{now[len(before) :]}<{token}>"
        if now.endswith("\ufffd") and not last and not self._whole():
            return ""
        self._before, self._waiting = self._waiting, []
        return now[len(before) :]

    def _whole(self) -> bool:
        """Whether the U+FFFD at the end is the text's own, not what an incomplete character decodes to."""
        return "".join(self._tokenizer.convert_ids_to_tokens(self._waiting)).endswith(_REPLACEMENT)


def token_texts(tokenizer: Any, ids: list[int]) -> list[str]:
    """The text each of ``ids`` adds, as `TokenReader` tells it."""
    reader = TokenReader(tokenizer)
    return [reader.read(token, last=place == len(ids)) for place, token in enumerate(ids, start=1)]


def _describe_row(session: LoadedModel, request: Request, ids: list[int]) -> dict[str, Any]:
    ended = not request.ignore_eos and ids[-1] == session.eos_id
    written = ids[:-1] if ended else ids
    # The end token apart: a character still incomplete before it belongs to the text.
    texts = [text for part in (written, ids[len(written) :]) for text in token_texts(session.tokenizer, part)]
    return {
        "ids": ids,
        "token_texts": texts if request.return_text else [""] * len(ids),
        "text": "".join(texts[: len(written)]) if request.return_text else None,
        # As the vendor counts them: the output, end token included, tokenised again.
        "text_tokens": len(session.encode("".join(texts))),
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


def _describe_model(session: LoadedModel, request: Request) -> dict[str, Any]:
    checkpoint, model = session.checkpoint, session.model
    return {
        "name": checkpoint.name,
        "source": checkpoint.source,
        "revision": checkpoint.revision,
        "family": session.family.name,
        "implementation": session.family.implementation,
        "class": type(model).__name__,
        "dtype": str(session.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "attention_kernels": machine.attention_kernels(session.device),
        "experts": getattr(model.config.get_text_config(), "_experts_implementation", None),
        "decode_attention_kernels": machine.attention_kernels(session.device, request.strategy),
        "decode_experts": decode_experts(model, request.strategy).get("text_config"),
        "strategy": request.strategy,
        "vision": request.vision,
        "cuda_calls": checkpoint.cuda_calls,
        "parameters": session.family.parameters(model),
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

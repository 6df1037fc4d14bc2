"""The chat completion that a request to a server is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from ocr_phases.engines.dialects import LLAMA_CPP, SGLANG, VLLM, Dialect
from ocr_phases.engines.extra_body import merge_entries
from ocr_phases.families import FamilyFacts
from ocr_phases.settings import Request

#: The window of a rule against repetition that looks at all tokens.
_WHOLE_TEXT = 1 << 20
#: SGLang's class for the rule; the server needs --enable-custom-logit-processor.
_SGLANG_MODULE = "sglang.srt.sampling.custom_logit_processor"
_SGLANG_CLASS = "DeepseekOCRNoRepeatNGramLogitProcessor"


@dataclass(frozen=True)
class RepetitionRule:
    """The rule against repetition that a request asks for.

    Attributes
    ----------
    size : int
        A run of so many tokens must not occur twice.
    window : int or None
        How many of the last tokens the rule looks at; None for all.
    allowed : frozenset of int
        The ids of tokens that may end a repeated run all the same.
    """

    size: int
    window: int | None = None
    allowed: frozenset[int] = frozenset()


def chat_body(
    request: Request,
    page: str,
    *,
    model: str,
    dialect: Dialect,
    family: FamilyFacts,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of a chat completion for a request about one page.

    Parameters
    ----------
    request : Request
        What is asked for.
    page : str
        The page as a data URL.
    model : str
        The served model's name.
    dialect : Dialect
        The server's engine.
    family : FamilyFacts
        The facts of the model's family.
    extra : mapping
        Entries that are added (`ocr_phases.engines.extra_body.read_extra_body`).

    Returns
    -------
    dict
        The body, ready to be sent as JSON.
    """
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": page}}
    text = request.prompts[0]
    body: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": request.seed,
    }
    if dialect is VLLM:
        # A page's own name and salt: no repeat finds the last one's page in a cache.
        name = uuid.uuid4().hex
        image["uuid"] = name
        body["cache_salt"] = name
        body["return_token_ids"] = True
    elif not family.is_unknown:
        # The server puts the image before the text itself; vLLM takes the text as it is.
        text = text.removeprefix("<image>").lstrip("\n")
    if dialect is LLAMA_CPP:
        body["cache_prompt"] = False  # a repeat reads its page and prompt anew
    body.update(_sampling(request, dialect))
    if request.max_new_tokens != family.published_limit:
        body["max_tokens"] = request.max_new_tokens
    body.update(_rule_entries(request, dialect))
    if dialect.extends_openai:
        body["ignore_eos"] = request.ignore_eos
        if not family.is_unknown:
            # Boxes are marked by special tokens, which an unknown family is not known to have.
            body["skip_special_tokens"] = False
    elif request.ignore_eos:
        body["ignore_eos"] = True
    body["model"] = model
    body["messages"] = [{"role": "user", "content": [image, {"type": "text", "text": text}]}]
    body["logprobs"] = request.token_probabilities
    body = merge_entries(body, extra)
    if repetition_rule_of(body, dialect) != _plain_rule(body):
        # The plain entry knows neither a window nor tokens that are allowed.
        body.pop("no_repeat_ngram_size", None)
    return body


def _sampling(request: Request, dialect: Dialect) -> dict[str, Any]:
    """How the next token is chosen, as entries of a body."""
    infer = request.infer
    entries: dict[str, Any] = {"temperature": 0.0, "top_p": infer.top_p}
    if infer.do_sample:
        entries["temperature"] = infer.temperature
    if infer.top_k:
        entries["top_k"] = infer.top_k
    if infer.repetition_penalty != 1.0:
        if dialect is LLAMA_CPP:
            entries["repeat_penalty"] = infer.repetition_penalty
            entries["repeat_last_n"] = -1  # of all tokens, as in transformers
        else:
            entries["repetition_penalty"] = infer.repetition_penalty
    return entries


def _rule_entries(request: Request, dialect: Dialect) -> dict[str, Any]:
    """The rule against repetition, as entries of a body; none where there is no rule."""
    size = request.infer.no_repeat_ngram_size
    if not size:
        return {}
    window = request.infer.no_repeat_ngram_window
    rule: dict[str, Any] = {"ngram_size": size, "window_size": window or _WHOLE_TEXT}
    if request.infer.whitelist_token_ids:
        rule["whitelist_token_ids"] = list(request.infer.whitelist_token_ids)
    if dialect is SGLANG:
        return {"custom_logit_processor": sglang_processor(), "custom_params": rule}
    entries: dict[str, Any] = {"vllm_xargs": rule}
    if not request.infer.has_own_rule:
        # vLLM's own parameter, which versions that lack it ignore; beside the processor it asks
        # for the same rule.
        entries["no_repeat_ngram_size"] = size
    return entries


def sglang_processor() -> str:
    """SGLang's rule against repetition in the form in which its server reads a processor.

    It is what ``DeepseekOCRNoRepeatNGramLogitProcessor.to_str()`` gives: JSON with the pickled
    reference to that class, which is written here so that SGLang need not be installed.
    """
    protocol = b"\x80\x04"
    look_up = b"\x93"  # takes the two texts before it: a module, and a name in it
    stop = b"."
    reference = (
        protocol + _pickled_text(_SGLANG_MODULE) + _pickled_text(_SGLANG_CLASS) + look_up + stop
    )
    return json.dumps({"callable": reference.hex()})


def _pickled_text(text: str) -> bytes:
    """A text of fewer than 256 bytes in pickle's protocol 4."""
    encoded = text.encode()
    return b"\x8c" + bytes([len(encoded)]) + encoded


def repetition_rule_of(body: Mapping[str, Any], dialect: Dialect) -> RepetitionRule | None:
    """The rule against repetition that a body asks for; None where it asks for none."""
    entries = body.get("custom_params" if dialect is SGLANG else "vllm_xargs")
    if not isinstance(entries, dict) or not _is_count(entries.get("ngram_size")):
        return _plain_rule(body)
    window = entries.get("window_size")
    if not _is_count(window) or window >= _WHOLE_TEXT:
        window = None
    allowed = set()
    listed = entries.get("whitelist_token_ids")
    if isinstance(listed, list):
        allowed = {token for token in listed if isinstance(token, int)}
    return RepetitionRule(entries["ngram_size"], window, frozenset(allowed))


def _plain_rule(body: Mapping[str, Any]) -> RepetitionRule | None:
    """The rule of vLLM's own parameter; None where a body does not have it."""
    size = body.get("no_repeat_ngram_size")
    return RepetitionRule(size) if _is_count(size) else None


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0

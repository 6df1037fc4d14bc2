"""What a checkpoint says of generating: its end tokens and the settings of its `generate()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ocr_phases.errors import OcrPhasesError, short

#: Entries that a run's ``infer`` has, too, which wins.
SAMPLING = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
)
#: Entries that are applied as they are, by transformers' own logits processors.
TOKEN_RULES = (
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "min_length",
    "min_new_tokens",
)
#: Entries that change no token here: how long a run is and what it returns is asked of the run
#: itself.
HARMLESS = frozenset(
    [
        "_from_model_config",
        "transformers_version",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
        "max_length",
        "max_new_tokens",
        "use_cache",
        "cache_config",
        "max_cache_len",
        "low_memory",
        "prefill_chunk_size",
        "continuous_batching_config",
        "compile_config",
        "disable_compile",
        "early_stopping",
        "length_penalty",
        "is_assistant",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
        "assistant_early_exit",
        "assistant_lookbehind",
        "target_lookbehind",
        "assistant_ensemble_weight",
        "max_matching_ngram_size",
        "speculation_type",
        "output_attentions",
        "output_hidden_states",
        "output_logits",
        "output_scores",
        "renormalize_logits",
        "return_dict_in_generate",
    ]
)
#: Entries that are refused, with the value of each that changes nothing. None as a value here says
#: that all values are refused. An entry that is None or False changes nothing anyway.
REFUSED: Mapping[str, Any] = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "diversity_penalty": 0,
    "penalty_alpha": 0,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "min_p": 0,
    "top_h": 1,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "guidance_scale": 1,
    "cache_implementation": "dynamic",
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
    "constraints": None,
    "force_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "remove_invalid_values": None,
    "dola_layers": None,
    "prompt_lookup_num_tokens": None,
    "stop_strings": None,
    "token_healing": None,
    "watermarking_config": None,
    "max_time": None,
    "use_mtp": None,
}
#: What ``generate()`` takes for an entry of sampling that a checkpoint which samples does not have.
_TOP_K = 50
#: Entries of `SAMPLING` that change the tokens of a greedy run, too.
_GREEDY = ("repetition_penalty", "no_repeat_ngram_size")
#: The values of entries of `SAMPLING` that change nothing.
_NEUTRAL = {
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "temperature": 1,
    "top_p": 1,
    "top_k": 0,
}


@dataclass(frozen=True)
class GenerationDefaults:
    """What a checkpoint says of generating.

    ``end_tokens`` are all that any of its files names, ``own_end_tokens`` those that ``generate()``
    knows. ``sampling`` are entries as ``infer`` has them, ``rules`` the others that choose tokens.
    """

    end_tokens: tuple[int, ...]
    own_end_tokens: tuple[int, ...]
    sampling: Mapping[str, Any]
    rules: Mapping[str, Any]

    def described(self) -> dict[str, Any]:
        """As a record keeps them."""
        return {"end_tokens": list(self.end_tokens), "settings": {**self.sampling, **self.rules}}


def generation_defaults(model: Any, config: Mapping[str, Any]) -> GenerationDefaults:
    """The end tokens and settings of a loaded ``model`` whose ``config.json`` is ``config``.

    They are read of the model, which has those of its ``generation_config.json``, as its
    ``generate()`` does. Raises `OcrPhasesError` for a setting that is not applied here and would
    change the tokens, and where no end token is named.
    """
    own = getattr(model, "generation_config", None)
    entries = {} if own is None else own.to_diff_dict()
    known = {} if own is None else vars(type(own)())
    for name, value in entries.items():
        if name in known:
            _refuse_unless_applied(name, value)
    settings = {name: value for name, value in entries.items() if value is not None}
    end_tokens = _end_tokens(settings, config, vars(model.config.get_text_config()))
    if not end_tokens:
        raise OcrPhasesError(
            "The checkpoint names no end token: add eos_token_id to its generation_config.json."
        )
    return GenerationDefaults(
        end_tokens=end_tokens,
        own_end_tokens=tuple(_ids(settings.get("eos_token_id"))),
        sampling=_sampling(settings),
        rules={name: settings[name] for name in TOKEN_RULES if settings.get(name)},
    )


def _refuse_unless_applied(name: str, value: Any) -> None:
    """Raise `OcrPhasesError` for an entry that is not applied and may change the tokens."""
    if name in SAMPLING or name in TOKEN_RULES or name in HARMLESS:
        return
    if not _changes_nothing(name, value):
        raise OcrPhasesError(
            f"generation_config.json sets {name} to {short(value)}, which is not applied here, so "
            "other tokens than those of generate() would be measured: remove it from the file."
        )


def _end_tokens(
    settings: Mapping[str, Any], config: Mapping[str, Any], text_config: Mapping[str, Any]
) -> tuple[int, ...]:
    """The end tokens that any of the places names, each once, in the order of the places."""
    places = [
        settings,
        config,
        config.get("text_config"),
        config.get("language_config"),
        text_config,
    ]
    tokens: list[int] = []
    for place in places:
        if isinstance(place, Mapping):
            tokens += _ids(place.get("eos_token_id"))
    return tuple(dict.fromkeys(tokens))


def _ids(value: Any) -> list[int]:
    """The ids that an entry names: one id, a list of them, or none."""
    if value is None:
        return []
    if isinstance(value, int):
        return [value]
    return [int(each) for each in value]


def _changes_nothing(name: str, value: Any) -> bool:
    """Whether an entry that is not applied leaves all tokens as they are."""
    if value is None or value is False:
        return True
    neutral = REFUSED.get(name)
    return neutral is not None and value == neutral


def _sampling(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of sampling that change something.

    Of a checkpoint that does not sample only those count that change a greedy choice, too.
    """
    names: tuple[str, ...] = _GREEDY
    samples = bool(settings.get("do_sample")) and settings.get("temperature") != 0
    if samples:
        names = SAMPLING
    entries = {name: settings[name] for name in names if name in settings}
    if samples:
        entries.setdefault("top_k", _TOP_K)
    changing: dict[str, Any] = {}
    for name, value in entries.items():
        if name == "do_sample" or value != _NEUTRAL[name]:
            changing[name] = value
    return changing

"""What a checkpoint says of generating: its end tokens, and the settings that `generate()` takes
from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
RULES = (
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
#: Entries that are refused, unless they have the value that changes nothing; no value never does,
#: nor False.
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
        if (
            name in known
            and name not in (*SAMPLING, *RULES, *HARMLESS)
            and not _changes_nothing(name, value)
        ):
            raise OcrPhasesError(
                f"generation_config.json sets {name} to {short(value)}, which is not applied here, so other "
                "tokens than those of generate() would be measured: remove it from the file."
            )
    given = {name: value for name, value in entries.items() if value is not None}
    own_ends = tuple(_ids(given.get("eos_token_id")))
    text = model.config.get_text_config()
    named = (given, config, config.get("text_config"), config.get("language_config"), vars(text))
    ends = [
        end for part in named if isinstance(part, Mapping) for end in _ids(part.get("eos_token_id"))
    ]
    if not ends:
        raise OcrPhasesError(
            "The checkpoint names no end token: add eos_token_id to its generation_config.json."
        )
    return GenerationDefaults(
        end_tokens=tuple(dict.fromkeys(ends)),
        own_end_tokens=own_ends,
        sampling=_sampling(given),
        rules={name: given[name] for name in RULES if given.get(name)},
    )


def _ids(value: Any) -> Iterator[int]:
    """One id, a list of them, or none."""
    if isinstance(value, int):
        yield value
    elif value is not None:
        yield from map(int, value)


def _changes_nothing(name: str, value: Any) -> bool:
    """Whether an entry that is not applied leaves all tokens as they are."""
    if value is None or value is False:
        return True
    return name in REFUSED and REFUSED[name] is not None and value == REFUSED[name]


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of sampling that change something: those of a checkpoint that does not sample are
    few.
    """
    names = ["repetition_penalty", "no_repeat_ngram_size"]
    samples = bool(given.get("do_sample")) and given.get("temperature") != 0
    if samples:
        names = list(SAMPLING)
    found = {name: given[name] for name in names if name in given}
    if samples:
        found.setdefault("top_k", _TOP_K)
    neutral = {
        "repetition_penalty": 1,
        "no_repeat_ngram_size": 0,
        "temperature": 1,
        "top_p": 1,
        "top_k": 0,
    }
    return {
        name: value
        for name, value in found.items()
        if name == "do_sample" or value != neutral[name]
    }

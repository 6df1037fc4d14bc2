"""What a user adds to each request to a server: ``extra_body``, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ocr_phases.errors import Keyword, SettingError

#: More bytes of JSON than any deployment adds to a request.
_MOST_BYTES = 100_000

#: Entries that the measurement itself depends on.
_OWN_ENTRIES = (
    "logprobs",
    "messages",
    "model",
    "n",
    "return_token_ids",
    "stream",
    "stream_options",
)

#: Entries that are settings, by the setting's name: the record would tell another value.
_SETTINGS = {
    "ignore_eos": "ignore_eos",
    "max_completion_tokens": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "no_repeat_ngram_size": "infer",
    "repeat_penalty": "infer",
    "repetition_penalty": "infer",
    "seed": "seed",
    "temperature": "infer",
    "top_k": "infer",
    "top_p": "infer",
}


def read_extra_body(extra_body: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """The entries that each request gets besides its own.

    Parameters
    ----------
    extra_body : mapping or str, optional
        A mapping, or the same as JSON text, such as
        ``{"vllm_xargs": {"whitelist_token_ids": [128821, 128822]}}``.

    Returns
    -------
    dict
        A copy that JSON can hold; empty without an ``extra_body``.

    Raises
    ------
    SettingError
        Where it is no object of JSON, is too large, or has an entry that is a setting or that the
        measurement depends on.

    Examples
    --------
    >>> read_extra_body('{"priority": 1}')
    {'priority': 1}
    """
    if extra_body is None or extra_body == "":
        return {}
    setting = Keyword("extra_body")
    try:
        if isinstance(extra_body, str):
            data = extra_body.encode()
        else:
            data = msgspec.json.encode(extra_body)
        # A mapping is read again, too: what JSON cannot hold, such as NaN, shows then.
        entries = msgspec.json.decode(data, type=dict[str, Any])
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(
            "extra_body",
            '{setting} is no JSON object: write {{"name": value}}, with names in double quotes.',
            setting=setting,
        ) from error
    if len(data) > _MOST_BYTES:
        raise SettingError(
            "extra_body",
            "{setting} has more than {most} kB: leave something out.",
            setting=setting,
            most=_MOST_BYTES // 1000,
        )
    for name in entries:
        if name in _OWN_ENTRIES:
            raise SettingError(
                "extra_body",
                "{setting} has {name}, which the measurement sets itself: leave it out.",
                setting=setting,
                name=name,
            )
        if name in _SETTINGS:
            raise SettingError(
                "extra_body",
                "{setting} has {name}, which is a setting: give {keyword} instead, so that the "
                "record tells it.",
                setting=setting,
                name=name,
                keyword=Keyword(_SETTINGS[name]),
            )
    return entries


def merge_entries(own: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A request's own entries with the extra ones; two objects of one name are joined.

    An extra entry replaces the one of the same name.
    """
    merged = dict(own)
    for name, value in extra.items():
        before = merged.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[name] = before | value
        else:
            merged[name] = value
    return merged

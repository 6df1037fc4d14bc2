"""What each serving engine tells of itself, and which settings a request to it can carry."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from ocr_phases.engines.client import Server, ServerFailed, short_name

#: Settings of the next token's choice that plain OpenAI has no entry for.
_BEYOND_OPENAI = ("no_repeat_ngram_size", "top_k", "repetition_penalty", "ignore_eos")


@dataclass(frozen=True)
class Dialect:
    """One engine's way to speak OpenAI's protocol.

    Attributes
    ----------
    name : str
        The engine's name: what the setting ``engine`` may be.
    version_entries : tuple of (str, str)
        Paths below the server's root that tell the version, with the entry of the answer that is
        the version. The first path that answers counts.
    cannot : tuple of str
        The settings that the engine is not known to take.
    extends_openai : bool
        Whether it takes ``ignore_eos`` and ``skip_special_tokens`` as vLLM and SGLang do.
    """

    name: str
    version_entries: tuple[tuple[str, str], ...] = ()
    cannot: tuple[str, ...] = ()
    extends_openai: bool = False


VLLM = Dialect("vllm", (("/version", "version"),), extends_openai=True)
SGLANG = Dialect(
    "sglang",
    # The second path is what the first was called before March 2026.
    (("/server_info", "version"), ("/get_server_info", "version")),
    extends_openai=True,
)
LLAMA_CPP = Dialect("llama.cpp", (("/props", "build_info"),), ("no_repeat_ngram_size",))
OLLAMA = Dialect("ollama", (("/api/version", "version"),), _BEYOND_OPENAI)
OTHER = Dialect("other", (), _BEYOND_OPENAI)

#: The engines in the order in which a server is asked whether it is one.
DIALECTS = {dialect.name: dialect for dialect in (SGLANG, VLLM, LLAMA_CPP, OLLAMA, OTHER)}


def find_dialect(server: Server, named: str | None = None) -> tuple[Dialect, str, str]:
    """The engine of a server, its version, and where its name is from.

    Where an engine is ``named``, as for a server behind a proxy that shows only ``/v1``, it is
    believed, and only its version is asked for.
    """
    if named is not None:
        dialect = DIALECTS[named]
        version, _ = _version_of(server, dialect)
        return dialect, version, "named by the user"
    for dialect in DIALECTS.values():
        version, path = _version_of(server, dialect)
        if path:
            return dialect, version, f"its answer to {path}"
    return OTHER, "unknown", "unknown"


def _version_of(server: Server, dialect: Dialect) -> tuple[str, str]:
    """The version that a server of this engine tells, and the path that told it."""
    for path, entry in dialect.version_entries:
        with contextlib.suppress(ServerFailed, LookupError):
            answer = server.call(server.root + path, dict[str, Any])
            return short_name(str(answer[entry] or "unknown")), path
    return "unknown", ""

"""HTTP with a model server: bounded answers, no redirects, each failure in one sentence."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import HTTPErrorProcessor, ProxyHandler, Request, build_opener

import msgspec
from msgspec import Meta

from ocr_phases.errors import OcrPhasesError, require
from ocr_phases.schema import shape
from ocr_phases.text import plain

#: The environment variable of the server's key.
KEY = "OCR_PHASES_API_KEY"
_ADDRESS = re.compile(r"(https?://(\[[\da-fA-F:.]+\]|[^\s/?#:\[\]]+)(?::\d{1,5})?)(/[^\s?#]*|)(?:#(.+))?")
_MOST_BYTES = 64_000_000  # of an answer, streamed or not
_MOST_TOLD = 300  # characters of a server's own message
_CUT = "ended the connection in the middle of an answer"
#: What a server that refuses does, by the status or its first digit.
_REFUSALS = {
    3: "redirects to {place}, which would get the page too: name that address yourself",
    4: "refuses {path} ({status}{said})",
    5: "failed {path} ({status}{said})",
    401: f"refuses the key (401): set {KEY}, or give api_key",
    403: f"refuses the key (403): set {KEY}, or give api_key",
    429: "has too many requests (429): ask again later, or for fewer at once",
}

#: What answers are: an event of a stream has OpenAI's entries, and vLLM's ids.
_COUNT = Annotated[int, Meta(ge=0, le=2**24)]
SHAPES: dict[str, Any] = {"text": str, "number": float, "any": Any, "count": _COUNT}
for _name, _entries in {
    "delta": "content?:text?",
    "logprob": "logprob:number",
    "logprobs": "content?:logprob*?",
    "choice": "delta?:delta finish_reason?:text? logprobs?:logprobs? token_ids?:count*?",
    "details": "cached_tokens?:count?",
    "usage": "prompt_tokens:count prompt_tokens_details?:details?",
    "chunk": "choices?:choice* usage?:usage? prompt_token_ids?:count*? error?:any",
    "model": "id:text",
    "models": "data:model*",
}.items():
    SHAPES[_name] = shape(SHAPES, _entries)


class ServerFailed(OcrPhasesError):
    """A server that cannot be reached, refuses, stalls, or answers something else."""


class _AsItIs(HTTPErrorProcessor):
    """Hands on every answer: a redirect is followed by nobody, so page and key go to nobody else."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


class Server:
    """An address of an OpenAI-compatible server, ``http://HOST:PORT/v1#MODEL``; the model may be left out.

    ``api_key`` goes into the header of each request and nowhere else. ``patience`` is how many seconds may
    pass without a byte. Raises `OcrPhasesError` for what is no such address.
    """

    def __init__(self, address: str, *, api_key: str | None = None, patience: float = 300.0) -> None:
        self.patience, self._key = patience, api_key or os.environ.get(KEY, "")
        sendable = self._key.isascii() and self._key.isprintable()
        told = f"A key does not belong into an address: set {KEY}, or give api_key."
        require([(told, "@" not in address.partition("#")[0])])
        require([("The key has characters that no header takes: copy it again.", sendable)])
        told = f"{plain(address)[:200]!r} is no server's address: write http://HOST:PORT/v1, or https."
        if (parts := _ADDRESS.fullmatch(address)) is None:
            raise OcrPhasesError(told)
        site, self.host, path, self.model = parts.groups()
        self.url = site + (path.rstrip("/") or "/v1")
        self.root = self.url.removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        self._headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        # A server on this host is behind no proxy.
        self._open = build_opener(_AsItIs, ProxyHandler({})).open

    def read(self, address: str, body: Any = None) -> bytes:
        """What an address answers, such as ``/metrics`` behind `root`; a body is sent as JSON."""
        return b"".join(self._lines(address, body))

    def call(self, address: str, kind: Any, body: Any = None) -> Any:
        """The same, read as JSON of this type."""
        return self._decoded(self.read(address, body), kind, f"what {address} answers")

    def stream(self, body: Any) -> Iterator[tuple[float, dict[str, Any]]]:
        """The chunks of a chat completion, each with the time of `time.monotonic` at which it arrived.

        Raises `ServerFailed` where a chunk is none, and where the stream ends before the answer does.
        """
        for line in self._lines(f"{self.url}/chat/completions", body):
            now, (name, _, data) = time.monotonic(), line.strip().partition(b":")
            if name.startswith(b"{"):
                raise self._failed("does not stream: it answered all at once")
            if data.strip() == b"[DONE]":
                return
            if name == b"data":  # else a comment that keeps the connection, or an event's name
                chunk = self._decoded(data, SHAPES["chunk"], "a chunk of its stream")
                if chunk.get("error"):
                    raise self._failed(f"gave up ({self._said(data)})")
                yield now, chunk
        raise self._failed(_CUT)

    def _lines(self, address: str, body: Any) -> Iterator[bytes]:
        """The lines of an answer, as they come; whatever goes wrong in it is a `ServerFailed`."""
        data, left = None if body is None else msgspec.json.encode(body), _MOST_BYTES
        told = "does not speak HTTP here ({})"
        try:
            with self._open(Request(address, data, self._headers), timeout=self.patience) as answer:
                told = _CUT
                if answer.status != HTTPStatus.OK:
                    raise self._refusal(answer)
                while line := answer.readline(left + 1):
                    if (left := left - len(line)) < 0:
                        raise self._failed(f"sent more than {_MOST_BYTES // 10**6} MB")
                    yield line
        except TimeoutError as error:
            raise self._failed(f"sent nothing for {self.patience:g} s") from error
        except URLError as error:
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise self._failed(f"cannot be reached ({reason}): is it running?") from error
        except (HTTPException, OSError) as error:
            raise self._failed(told.format(type(error).__name__)) from error

    def _refusal(self, answer: Any) -> ServerFailed:
        status, said = answer.status, self._said(answer.read(_MOST_BYTES))
        place = plain(answer.headers.get("Location", "nowhere"))[:200]
        words = {"path": answer.url.removeprefix(self.root), "place": place, "said": f"{said and ': '}{said}"}
        told = _REFUSALS.get(status) or _REFUSALS.get(status // 100, _REFUSALS[4])
        return self._failed(told.format(status=status, **words))

    def _said(self, data: bytes) -> str:
        """The message in a server's error, without the key."""
        said: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            said = msgspec.json.decode(data)
        while isinstance(said, dict):
            said = said.get("error") or said.get("message") or said.get("detail")
        text = " ".join(plain(str(said or "")).split()).replace(self._key or "…", "…")
        return text[:_MOST_TOLD].rstrip(".")

    def _decoded(self, data: bytes, kind: Any, what: str) -> Any:
        try:
            return msgspec.json.decode(data, type=kind)
        except (ValueError, RecursionError) as error:
            told = f"is not OpenAI-compatible: {what} is not as it should be ({error})"
            raise self._failed(told) from error

    def _failed(self, told: str) -> ServerFailed:
        return ServerFailed(f"{self.url} {told}.".replace("?.", "?"))

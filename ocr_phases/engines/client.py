"""HTTP with a model server: bounded answers, no redirects, each failure in one sentence."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from ocr_phases.errors import OcrPhasesError
from ocr_phases.text import plain

#: The environment variable of the server's key.
KEY = "OCR_PHASES_API_KEY"
_MOST_BYTES = 64_000_000  # of an answer, streamed or not
_MOST_LINE = 8_000_000
_MOST_TOLD = 300  # characters of a server's own message
_REFUSALS = {
    401: "refuses the key (401): set {key}, or give api_key",
    403: "refuses the key (403): set {key}, or give api_key",
    429: "has too many requests (429): ask again later, or for fewer at once",
}
_Shape = TypeVar("_Shape")


class ServerFailed(OcrPhasesError):
    """A server that cannot be reached, refuses, stalls, or answers something else; ``status`` is HTTP's."""

    status = 0


_Count = Annotated[int, Meta(ge=0, le=2**24)]


class Delta(msgspec.Struct):
    """What a chunk adds."""

    content: str | None = None


class Logprob(msgspec.Struct):
    """A token's natural logarithm of its probability."""

    logprob: float


class Logprobs(msgspec.Struct):
    """One a token."""

    content: list[Logprob] | None = None


class Choice(msgspec.Struct):
    """The one answer of a chunk."""

    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    token_ids: list[_Count] | None = None


class Details(msgspec.Struct):
    """What a server says of a prompt's tokens."""

    cached_tokens: _Count | None = None


class Usage(msgspec.Struct):
    """Tokens as the server counts them."""

    prompt_tokens: _Count
    prompt_tokens_details: Details | None = None


class Chunk(msgspec.Struct):
    """One event of a stream: OpenAI's entries, and vLLM's ids."""

    choices: list[Choice] = []
    usage: Usage | None = None
    prompt_token_ids: list[_Count] | None = None
    error: Any = None


class Named(msgspec.Struct):
    """A served model."""

    id: str


class Models(msgspec.Struct):
    """The list of them."""

    data: list[Named]


class Server:
    """An address of an OpenAI-compatible server, ``http://HOST:PORT/v1#MODEL``; the model may be left out.

    ``key`` goes into the header of each request and nowhere else. ``patience`` is how many seconds may pass
    without a byte. Raises `OcrPhasesError` for what is no such address.
    """

    def __init__(self, address: str, key: str | None = None, patience: float = 300.0) -> None:
        told = f"{plain(address)[:200]!r} is no server's address: write http://HOST:PORT/v1, or https."
        try:
            parts, port = urlsplit(address), urlsplit(address).port
        except ValueError as error:
            raise OcrPhasesError(told) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or " " in address:
            raise OcrPhasesError(told)
        if parts.username is not None:
            raise OcrPhasesError(f"A key does not belong into an address: set {KEY}, or give api_key.")
        self.secure, self.host, self.port = parts.scheme == "https", parts.hostname, port
        self.path, self.model = parts.path.rstrip("/") or "/v1", parts.fragment or None
        self.root = self.path.removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc}{self.path}"
        self.patience, self._key = patience, key or os.environ.get(KEY)
        if self._key and not (self._key.isascii() and self._key.isprintable()):
            raise OcrPhasesError("The key has characters that no header takes: copy it again.")

    def get(self, path: str) -> bytes:
        """What is at a path of the server's own, such as ``/metrics``."""
        with self._answer(self.root + path, None) as answer:
            return self._read(answer)

    def post(self, path: str, body: Any) -> bytes:
        """What a path answers to a JSON body."""
        with self._answer(self.root + path, body) as answer:
            return self._read(answer)

    def models(self) -> list[str]:
        """The names of the models that it serves."""
        with self._answer(f"{self.path}/models", None) as answer:
            found = self._decoded(self._read(answer), Models, "its list of models")
        return [each.id for each in found.data]

    def stream(self, body: Any) -> Iterator[tuple[float, Chunk]]:
        """The chunks of a chat completion, each with the time of `time.monotonic` at which it arrived.

        Raises `ServerFailed` where a chunk is none, and where the stream ends before the answer does.
        """
        size, ended = 0, False
        with self._answer(f"{self.path}/chat/completions", body) as answer:
            if "json" in (answer.getheader("Content-Type") or ""):
                raise self._failed("does not stream: it answered all at once")
            while line := answer.readline(_MOST_LINE):
                now, size = time.monotonic(), size + len(line)
                if size > _MOST_BYTES or len(line) == _MOST_LINE:
                    raise self._failed(f"sent more than {_MOST_BYTES // 10**6} MB for one page")
                name, _, data = line.strip().partition(b":")
                if data.strip() == b"[DONE]":
                    return
                if name != b"data":  # a comment that keeps the connection, or an event's name
                    continue
                chunk = self._decoded(data, Chunk, "a chunk of its stream")
                if chunk.error is not None:
                    raise self._failed(f"gave up ({self._said(data)})")
                ended |= any(choice.finish_reason for choice in chunk.choices)
                yield now, chunk
        if not ended:
            raise self._failed("ended the connection in the middle of an answer")

    @contextlib.contextmanager
    def _answer(self, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request; whatever goes wrong in it is a `ServerFailed`."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=self.patience)
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            try:
                connection.connect()
            except OSError as error:
                raise self._failed(
                    f"cannot be reached ({error.strerror or error}): is it running?"
                ) from error
            data = None if body is None else json.dumps(body)
            connection.request("POST" if data else "GET", path, data, headers)
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise self._refusal(answer, path)
            yield answer
        except TimeoutError as error:
            raise self._failed(f"sent nothing for {self.patience:g} s") from error
        except (http.client.IncompleteRead, ConnectionError) as error:
            raise self._failed("ended the connection in the middle of an answer") from error
        except (http.client.HTTPException, OSError) as error:
            raise self._failed(f"does not speak HTTP here ({type(error).__name__})") from error
        finally:
            connection.close()

    def _refusal(self, answer: http.client.HTTPResponse, path: str) -> ServerFailed:
        status, place = answer.status, answer.getheader("Location")
        if place is not None:
            told = (
                f"redirects to {plain(place)[:200]}, which would get the page too: name that address yourself"
            )
        elif status in _REFUSALS:
            told = _REFUSALS[status].format(key=KEY)
        else:
            said = self._said(answer.read(_MOST_LINE))
            told = f"{'failed' if status >= 500 else 'refuses'} {path} ({status}{said and ': '}{said})"
        error = self._failed(told)
        error.status = status
        return error

    def _said(self, data: bytes) -> str:
        """The message in a server's error, without the key."""
        try:
            said = msgspec.json.decode(data)
            said = said.get("error") or said.get("message") or said.get("detail")
            said = said.get("message") if isinstance(said, dict) else said
        except (ValueError, AttributeError):
            said = data.decode("utf-8", "replace") if data[:1] not in (b"<", b"{") else ""
        text = " ".join(plain(str(said or "")).split())
        return (text.replace(self._key, "…") if self._key else text)[:_MOST_TOLD].rstrip(".")

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        data = answer.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise self._failed(f"sent more than {_MOST_BYTES // 10**6} MB")
        return data

    def _decoded(self, data: bytes, shape: type[_Shape], what: str) -> _Shape:
        try:
            return msgspec.json.decode(data, type=shape)
        except (ValueError, RecursionError) as error:
            raise self._failed(
                f"is not OpenAI-compatible: {what} is not as it should be ({error})"
            ) from error

    def _failed(self, told: str) -> ServerFailed:
        return ServerFailed(f"{self.url} {told}.".replace("?.", "?"))

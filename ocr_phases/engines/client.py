"""HTTP with a model server: bounded answers, no redirects, each failure a sentence of ``client.toml``."""

from __future__ import annotations

import contextlib
import os
import re
import time
import tomllib
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ocr_phases.errors import OcrPhasesError, require
from ocr_phases.record.schema import shape
from ocr_phases.text import plain

#: Scheme, host, port, path and model of an address.
_ADDRESS = re.compile(r"(https?)://(\[[\da-fA-F:.]+\]|[^\s/?#:@\[\]]+)(:\d{1,5}|)(/[^\s?#@]*|)(?:#(.+))?")
_MOST_BYTES = 64_000_000  # of an answer, streamed or not
_MESSAGE = re.compile(r'"(?:message|detail)"\s*:\s*"((?:[^"\\]|\\.)*)"')
_TOLD = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_REFUSALS, _FAULTS = _TOLD["refusals"], _TOLD["faults"]

#: What answers are, by name; in them the entries of a record are kinds, too.
SHAPES: dict[str, Any] = {
    "text": str,
    "number": float,
    "any": Any,
    "count": Annotated[int, Meta(ge=0, le=2**24)],
}
for _name, _entries in _TOLD["answers"].items():
    SHAPES[_name] = shape(SHAPES, _entries)


class ServerFailed(OcrPhasesError):
    """A server that cannot be reached, refuses, stalls, or answers something else."""


class Server:
    """An address of an OpenAI-compatible server, ``http://HOST:PORT/v1#MODEL``; the model may be left out.

    ``api_key`` goes into the header of each request and nowhere else, no redirect is followed and no proxy
    asked. ``patience`` is how many seconds may pass without a byte. Raises `OcrPhasesError` for what is no
    such address.
    """

    def __init__(self, address: str, *, api_key: str | None = None, patience: float = 300.0) -> None:
        self.patience, self._key = patience, api_key or os.environ.get("OCR_PHASES_API_KEY", "")
        parts: Any = _ADDRESS.fullmatch(address)
        # Neither is in its sentence: an address may have a key, too.
        require([(_REFUSALS["address"], parts), (_REFUSALS["key"], re.fullmatch("[ -~]*", self._key))])
        scheme, self.host, port, path, self.model = parts.groups()
        self._connection = HTTPSConnection if scheme == "https" else HTTPConnection
        #: The host with its port; what the paths of OpenAI's methods, and of the server's own, begin with.
        self.place, self.path = f"{self.host}{port}", path.rstrip("/") or "/v1"
        self.root, self.url = self.path.removesuffix("/v1"), f"{scheme}://{self.place}{self.path}"

    def lines(self, path: str, body: Any = None) -> Iterator[bytes]:
        """The lines that a path of the server answers, as they come; a body is sent as JSON."""
        data, left = None if body is None else msgspec.json.encode(body), _MOST_BYTES
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key or None}"}
        connection = self._connection(self.place, timeout=self.patience)
        with self._explained(), contextlib.closing(connection):
            connection.request("POST" if data else "GET", path, data, headers)
            answer = connection.getresponse()
            if (status := answer.status) != HTTPStatus.OK:
                told = _REFUSALS.get(f"{status}") or _REFUSALS.get(f"{status // 100}", _REFUSALS["4"])
                said = f"{status}{self._said(answer.read(_MOST_BYTES), ': ')}"
                place = plain(answer.headers.get("Location", "nowhere"))[:200]
                raise self._failed(told.format(path=path, place=place, said=said))
            while line := answer.readline(left + 1):
                if (left := left - len(line)) < 0:
                    raise self._failed(f"sent more than {_MOST_BYTES // 10**6} MB")
                yield line

    def call(self, path: str, kind: Any, body: Any = None) -> Any:
        """What a path answers, read as JSON of this type."""
        with self._explained():
            return msgspec.json.decode(b"".join(self.lines(path, body)), type=kind)

    def stream(self, body: Any) -> Iterator[tuple[float, dict[str, Any]]]:
        """The chunks of a chat completion, each with the time of `time.monotonic` at which it arrived.

        Raises `ServerFailed` where a chunk is none, and where the stream ends before the answer does.
        """
        with self._explained():
            for line in self.lines(f"{self.path}/chat/completions", body):
                now, (name, _, data) = time.monotonic(), line.strip().partition(b":")
                if name.startswith(b"{"):
                    raise self._failed("does not stream: it answered all at once")
                if data.strip() == b"[DONE]":
                    return
                if name == b"data":  # else a comment that keeps the connection, or an event's name
                    chunk = msgspec.json.decode(data, type=SHAPES["chunk"])
                    if chunk.get("error"):
                        raise self._failed(f"gave up ({self._said(data)})")
                    yield now, chunk
        raise self._failed(_FAULTS["IncompleteRead"])

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What goes wrong with an answer is a `ServerFailed`."""
        try:
            yield
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            told = next(_FAULTS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _FAULTS)
            raise self._failed(told.format(error=error, server=self)) from error

    def _said(self, data: bytes, before: str = "") -> str:
        """The first 300 characters of the message in a server's error, without the key."""
        said = plain("".join(_MESSAGE.findall(data.decode("utf-8", "replace"))[:1]))
        return said and before + said.replace(self._key or "…", "…")[:300].rstrip(".")

    def _failed(self, told: str) -> ServerFailed:
        return ServerFailed(f"{self.url} {told}.".replace("?.", "?"))

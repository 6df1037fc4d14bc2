"""HTTP with a model server: bounded waits and answers, no redirects, each failure one sentence."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from http import HTTPStatus
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    InvalidURL,
    RemoteDisconnected,
)
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ocr_phases.errors import OcrPhasesError
from ocr_phases.text import plain

#: Scheme, host, port, path and model of an address.
_ADDRESS = re.compile(
    r"(https?)://(\[[\da-fA-F:.]+\]|[^\s/?#:@\[\]]+)(:\d{1,5}|)(/[^\s?#@]*|)(?:#(.+))?"
)
_LAST_PORT = 65_535
#: Of an answer, streamed or not; of one that tells an error.
_MOST_BYTES = 64_000_000
_MOST_ERROR_BYTES = 64_000
#: Seconds for what a server answers without running the model, and for the end of an answer whose
#: last token has come.
QUICK_SECONDS = 10.0
#: How long a page may take by default, in seconds: until its first token, and until its last.
FIRST_TOKEN_SECONDS = 300.0
ANSWER_SECONDS = 3600.0
#: Characters of a server's error, and of a name that a server gives, which are shown.
_MOST_SHOWN = 300
_MOST_OF_NAME = 100
_MESSAGE = re.compile(r'"(?:message|detail|error)"\s*:\s*"((?:[^"\\]|\\.)*)')

#: The environment variable with further headers of each request, as a JSON object.
_HEADERS_VARIABLE = "OCR_PHASES_HEADERS"
#: Headers that HTTP itself or the client sets.
_OWN_HEADERS = ("connection", "content-length", "content-type", "host", "transfer-encoding")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: A secret of fewer characters would be taken out of words that have nothing to do with it.
_LEAST_SECRET = 4

#: What an answer in UTF-8 may begin with.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: The fields of an event's lines, but ``data``; a line without a name is a comment.
_EVENT_FIELDS = (b"", b"event", b"id", b"retry")
#: Characters of an answer that is no stream which are shown.
_MOST_OF_BEGINNING = 60

_BROKEN_OFF = "ended the connection in the middle of an answer"

Token = Annotated[int, Meta(ge=0, le=2**24)]


class Choice(Struct):
    """One of a chunk's choices; servers leave out or null whatever they have nothing for."""

    index: Any = None
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None
    logprobs: Any = None
    token_ids: list[Token] | None = None
    error: Any = None


class Chunk(Struct):
    """An event of a chat completion's stream, as OpenAI has it, with vLLM's ids."""

    choices: list[Choice] | None = None
    usage: Any = None
    prompt_token_ids: list[Token] | None = None
    #: What llama.cpp adds: its own times in ms, such as ``prompt_ms`` and ``predicted_ms``.
    timings: Any = None
    error: Any = None
    #: What an error is in other dialects: ``object`` is "error", or a reason stands by itself.
    object: Any = None
    message: Any = None
    detail: Any = None

    @property
    def tells_error(self) -> bool:
        """Whether the event is an error and no part of an answer."""
        if self.error or self.object == "error":
            return True
        return self.choices is None and bool(self.message or self.detail)


class ServedModel(Struct):
    """A model of the list at ``/models``."""

    id: str


class ServedModels(Struct):
    """What ``/models`` answers."""

    data: list[ServedModel]


class ServerFailed(OcrPhasesError):
    """A server that cannot be reached, refuses, stalls, or answers something else."""


class Deadline:
    """The moment until which an answer is waited for, and what is said of a server that is late."""

    def __init__(self, seconds: float, missed: str) -> None:
        self._begun = time.monotonic()
        self.extend(seconds, missed)

    def extend(self, seconds: float, missed: str) -> None:
        """Wait until so many seconds after the beginning."""
        self._end = self._begun + seconds
        self.missed = missed

    def end_within(self, seconds: float) -> None:
        """Wait for so many more seconds at most."""
        self._end = min(self._end, time.monotonic() + seconds)

    @property
    def remaining(self) -> float:
        """Seconds that are left; 0 or less where it has passed."""
        return self._end - time.monotonic()


class _TimedReader(io.RawIOBase):
    """What a socket receives, each read no longer than the patience and the deadline allow.

    A socket's own timeout begins anew with every byte, so a byte now and then would hold it for
    ever.
    """

    def __init__(self, connected: socket.socket, patience: float, deadline: Deadline) -> None:
        self._socket = connected
        self._file = connected.makefile("rb", buffering=0)
        self._patience = patience
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self._deadline.remaining
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(min(self._patience, remaining))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _TimedSocket:
    """The part of a socket that `http.client` uses, with a `Deadline`."""

    def __init__(self, connected: socket.socket, patience: float, deadline: Deadline) -> None:
        self._socket = connected
        self._patience = patience
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        """A reader of what the socket receives; ``mode`` is ``rb``."""
        del mode
        return io.BufferedReader(_TimedReader(self._socket, self._patience, self._deadline))

    def sendall(self, data: Any) -> None:
        """Send everything; `TimeoutError` where that takes longer than is left."""
        self._socket.settimeout(max(0.001, min(self._patience, self._deadline.remaining)))
        self._socket.sendall(data)

    def close(self) -> None:
        """Close the socket once its reader is closed, too."""
        self._socket.close()


class Server:
    """An address of an OpenAI-compatible server, ``http://HOST:PORT/v1#MODEL``; the model may be
    left out.

    ``api_key`` goes into the header of each request and nowhere else, and so do the headers of the
    environment variable ``OCR_PHASES_HEADERS``, a JSON object. No redirect is followed and no proxy
    asked. ``patience`` is how many seconds may pass without a byte,
    ``first_token_timeout`` how many until the first token of an answer, and ``answer_timeout`` how
    many until its end, whatever is sent meanwhile. Raises `OcrPhasesError` for what is no such
    address or number of seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None = None,
        patience: float = 300.0,
        first_token_timeout: float = FIRST_TOKEN_SECONDS,
        answer_timeout: float = ANSWER_SECONDS,
    ) -> None:
        limits = {
            "patience": patience,
            "first_token_timeout": first_token_timeout,
            "answer_timeout": answer_timeout,
        }
        for name, seconds in limits.items():
            # More than 2^63 ns is too much for a socket.
            if not (math.isfinite(seconds) and 0 < seconds <= 1e9):
                raise OcrPhasesError(
                    f"{name}={seconds!r} is no time to wait: give seconds above 0."
                )
        self.patience = patience
        self.first_token_timeout = first_token_timeout
        self.answer_timeout = answer_timeout
        self._key = api_key or os.environ.get("OCR_PHASES_API_KEY", "")
        parts = _ADDRESS.fullmatch(address)
        # No sentence repeats the address or the key: an address may have a key in it.
        if parts is None:
            raise OcrPhasesError(
                "A server's address is http://HOST:PORT/v1, or https. It has no key: set "
                "OCR_PHASES_API_KEY, or give api_key."
            )
        if not re.fullmatch("[ -~]*", self._key):
            raise OcrPhasesError("The key has characters that no header takes: copy it again.")
        self._headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self._key or None}",
        }
        own_headers = _environment_headers()
        if any(name.lower() == "authorization" for name in own_headers):
            del self._headers["Authorization"]
        self._headers.update(own_headers)
        secrets = [self._key, *own_headers.values()]
        #: What no message repeats, the longest first, since one may be a part of another.
        self._secrets = sorted(secrets, key=len, reverse=True)
        scheme, self.host, port, path, self.model = parts.groups()
        if port and int(port.removeprefix(":")) > _LAST_PORT:  # the system would take another one
            raise OcrPhasesError(f"There is no port {port.removeprefix(':')}: the last is 65535.")
        self._connection = HTTPSConnection if scheme == "https" else HTTPConnection
        #: The host with its port; what the paths of OpenAI's methods, and of the server's own,
        #: begin with.
        self.place = f"{self.host}{port}"
        self.path = path.rstrip("/") or "/v1"
        self.root = self.path.removesuffix("/v1")
        self.url = f"{scheme}://{self.place}{self.path}"

    def lines(
        self, path: str, body: Any = None, deadline: Deadline | None = None
    ) -> Iterator[bytes]:
        """The lines that a path of the server answers, as they come; a body is sent as JSON.

        Without a ``deadline`` they have to come within `QUICK_SECONDS`.
        """
        if deadline is None:
            deadline = _quick(path)
        data = None if body is None else msgspec.json.encode(body)
        wait = max(0.001, min(self.patience, deadline.remaining))
        connection = self._connection(self.place, timeout=wait)
        with self._explained(deadline), contextlib.closing(connection):
            _connect(connection, wait)
            timed: Any = _TimedSocket(connection.sock, self.patience, deadline)
            connection.sock = timed
            # A server that takes no request so large answers before it has read all of it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                connection.request("POST" if data else "GET", path, data, self._headers)
            answer = connection.getresponse()
            if answer.status != HTTPStatus.OK:
                raise self._failed(self._refusal(answer, path, deadline))
            encoding = answer.headers.get("Content-Encoding", "identity")
            if encoding.lower() != "identity":
                raise self._failed(
                    f"compresses its answers ({self._shown(encoding)}), which holds tokens back: "
                    "switch that off"
                )
            left = _MOST_BYTES
            begin = _BYTE_ORDER_MARK
            while line := answer.readline(left + 1):
                left -= len(line)
                if left < 0:
                    raise self._failed(f"sent more than {_MOST_BYTES // 10**6} MB")
                if deadline.remaining <= 0:
                    raise TimeoutError
                yield line.removeprefix(begin)
                begin = b""

    def call(self, path: str, kind: Any, body: Any = None, seconds: float = QUICK_SECONDS) -> Any:
        """What a path answers within so many seconds, read as JSON of this type."""
        with self._explained():
            answer = b"".join(self.lines(path, body, _quick(path, seconds)))
            return msgspec.json.decode(answer, type=kind)

    def stream(self, body: Any, deadline: Deadline) -> Generator[tuple[float, Chunk], None, None]:
        """The chunks of a chat completion, each with the time of `time.monotonic` at which it
        arrived.

        Raises `ServerFailed` where a chunk is none, where one tells an error, where the stream ends
        without ``[DONE]``, and where the answer is no stream.
        """
        event = b""
        no_events = b""  # the beginning of what is none
        with self._explained(deadline):
            for line in self.lines(f"{self.path}/chat/completions", body, deadline):
                now = time.monotonic()
                name, _, data = line.strip().partition(b":")
                if name == b"event":
                    event = data.strip()
                if name != b"data" or not data.strip():
                    # A comment that keeps the connection, an event's name, or no event at all.
                    if name not in _EVENT_FIELDS and len(no_events) < _MOST_ERROR_BYTES:
                        no_events += line
                    if not name:
                        event = b""
                    continue
                if data.strip() == b"[DONE]":
                    return
                if event == b"error":
                    raise self._gave_up(_message_of(data[:_MOST_ERROR_BYTES], or_all=True))
                chunk = msgspec.json.decode(data, type=Chunk | None)
                if chunk is None:
                    continue
                if chunk.tells_error:
                    raise self._gave_up(_message_of(data[:_MOST_ERROR_BYTES]))
                for choice in chunk.choices or []:
                    if choice.error or choice.finish_reason == "error":
                        raise self._gave_up(_message_in(choice.error))
                yield now, chunk
        if no_events:
            raise self._no_stream(no_events)
        raise self._failed(_BROKEN_OFF)

    def _no_stream(self, body: bytes) -> ServerFailed:
        """The error for a server that answers with something else than a stream."""
        answer = _json_of(body)
        if isinstance(answer, dict) and "choices" in answer:
            return self._failed("does not stream: it answered all at once")
        message = _message_of(body)
        if message:
            return self._gave_up(message)
        beginning = self._shown(body.decode("utf-8", "replace"))[:_MOST_OF_BEGINNING]
        return self._failed(f"does not stream: its answer begins with {beginning!r}")

    def _gave_up(self, message: str) -> ServerFailed:
        """The error for a server that tells one in the middle of its answer."""
        shown = self._shown(message)
        reason = f"({shown})" if shown else "without a reason"
        return self._failed(f"gave up {reason}")

    def _refusal(self, answer: HTTPResponse, path: str, deadline: Deadline) -> str:
        """What is said of an answer with another status than 200."""
        status = int(answer.status)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return f"refuses the key ({status}): set OCR_PHASES_API_KEY, or give api_key"
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return (
                "takes no request as large as this page (413): raise the limit of the server, or "
                "of the proxy before it"
            )
        if status == HTTPStatus.NOT_FOUND and path == f"{self.path}/models":
            return (
                f"has no {path} (404): give the address that stands before /models, such as "
                "http://HOST:PORT/v1"
            )
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return "has too many requests (429): ask again later, or for fewer at once"
        if status // 100 == 3:
            place = plain(answer.headers.get("Location", "nowhere"))[:200]
            return f"redirects to {place}, which would get the page too: name that address yourself"
        message = self._shown(_message_of(_error_body(answer, deadline)))
        reason = f"{status}: {message}" if message else f"{status}"
        verb = "failed" if status // 100 == 5 else "refuses"
        return f"{verb} {path} ({reason})"

    @contextlib.contextmanager
    def _explained(self, deadline: Deadline | None = None) -> Iterator[None]:
        """What goes wrong with an answer is a `ServerFailed`."""
        try:
            yield
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            raise self._failed(self._fault(error, deadline)) from error

    def _fault(self, error: Exception, deadline: Deadline | None) -> str:
        """What is said of an exception."""
        if isinstance(error, TimeoutError):
            if deadline is not None and deadline.remaining <= 0:
                return deadline.missed
            return f"sent nothing for {self.patience:g} s"
        if isinstance(error, RemoteDisconnected):
            return "closed the connection without an answer"
        if isinstance(error, IncompleteRead | ConnectionResetError | ssl.SSLEOFError):
            return _BROKEN_OFF
        is_decoded = isinstance(error, UnicodeDecodeError)  # what is wrong is in the answer
        if isinstance(error, InvalidURL | UnicodeError) and not is_decoded:
            return "is an address with characters that no address has: check it"
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"has a certificate that is not trusted ({error.verify_message}): name the file of "
                "its authority in the environment variable SSL_CERT_FILE"
            )
        if isinstance(error, ssl.SSLError):
            return f"does not speak TLS ({error.strerror}): is its address http instead of https?"
        if isinstance(error, HTTPException):
            return f"does not speak HTTP here ({type(error).__name__})"
        if isinstance(error, OSError):
            return f"cannot be reached ({error.strerror}): is it running?"
        reason = self._shown(str(error))
        return f"is not OpenAI-compatible: what it answers is not as it should be ({reason})"

    def _shown(self, message: str) -> str:
        """The first characters of what a server says, without the key and the headers' values."""
        shown = plain(message)
        for secret in self._secrets:
            if secret and (secret == self._key or len(secret) >= _LEAST_SECRET):
                shown = shown.replace(secret, "…")
        return shown[:_MOST_SHOWN].rstrip(".")

    def _failed(self, reason: str) -> ServerFailed:
        """The error whose sentence is the server's address and this reason."""
        sentence = f"{self.url} {reason}"
        if not sentence.endswith("?"):
            sentence = f"{sentence}."
        return ServerFailed(sentence)


def _environment_headers() -> dict[str, str]:
    """The headers of ``OCR_PHASES_HEADERS``; `OcrPhasesError` where they are no headers.

    No sentence repeats them: they may be secret.
    """
    text = os.environ.get(_HEADERS_VARIABLE, "")
    if not text:
        return {}
    try:
        headers = msgspec.json.decode(text, type=dict[str, str])
    except (ValueError, RecursionError):
        raise OcrPhasesError(
            f"{_HEADERS_VARIABLE} is no JSON object of texts: set it to one, such as "
            '{"X-Tenant": "books"}.'
        ) from None
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not re.fullmatch("[ -~]*", value):
            raise OcrPhasesError(
                f"{_HEADERS_VARIABLE} has characters that no header takes: write it again."
            )
        if name.lower() in _OWN_HEADERS:
            raise OcrPhasesError(
                f"{_HEADERS_VARIABLE} has {name}, which the client sets itself: leave it out."
            )
    return headers


def _connect(connection: HTTPConnection, seconds: float) -> None:
    """Connect within so many seconds; `TimeoutError` where that takes longer.

    The system looks up a host's name without any limit of time, and a socket's own timeout counts
    anew for each address of the host. So a thread connects, which is left behind when it is late.
    """
    outcome: Future[None] = Future()

    def connect() -> None:
        try:
            connection.connect()
        except Exception as error:  # noqa: BLE001 (it is raised where the outcome is awaited)
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(error)
            return
        if outcome.set_running_or_notify_cancel():
            outcome.set_result(None)
        else:
            connection.close()  # nobody waits for it any more

    threading.Thread(target=connect, name="ocr_phases connect", daemon=True).start()
    try:
        outcome.result(seconds)
    finally:
        outcome.cancel()


def _quick(path: str, seconds: float = QUICK_SECONDS) -> Deadline:
    return Deadline(seconds, f"did not answer {path} within {seconds:g} s")


def _error_body(answer: HTTPResponse, deadline: Deadline) -> bytes:
    """The first part of an error's body, as far as it comes within `QUICK_SECONDS`."""
    deadline.end_within(QUICK_SECONDS)
    body = b""
    # The status is told also where its reason does not come.
    with contextlib.suppress(OSError, HTTPException, ValueError):
        while len(body) < _MOST_ERROR_BYTES:
            part = answer.read1(_MOST_ERROR_BYTES - len(body))
            if not part:
                break
            body += part
    return body


def _message_of(body: bytes, *, or_all: bool = False) -> str:
    """The message in a server's error: of its JSON, also where that was cut; empty where there is
    none, or all of it.
    """
    value = _json_of(body)
    if value is not None:
        return _message_in(value)
    text = body.decode("utf-8", "replace")
    found = _MESSAGE.search(text)
    if found:
        return found[1]
    return text.strip() if or_all else ""


def _json_of(body: bytes) -> Any:
    """The value of this JSON; None where it is none, as where it was cut."""
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None


def _message_in(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _message_in(value[0]) if value else ""
    if not isinstance(value, dict):
        return ""
    for name in ("message", "error", "detail", "msg", "type", "code"):
        message = _message_in(value.get(name))
        if message:
            return message
    return ""


def short_name(name: str) -> str:
    """A name that a server gives, as it is shown: on one line, and cut where it is long."""
    name = plain(name)
    return name if len(name) <= _MOST_OF_NAME else f"{name[:_MOST_OF_NAME]}…"

"""A small OpenAI-compatible server for tests: as vLLM, as SGLang or as neither, and failing as
asked.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKENS = ["<|ref|>", "title", "<|/ref|>", "<|det|>", "[[1, 2, 3, 4]]", "<|/det|>", "\n", "Hello"]
IDS = [4, 15, 5, 6, 900, 7, 1232, 77]
IMAGE, BOS = 3, 0
TIMES = (
    "time_to_first_token",
    *(f"request_{part}_time" for part in ("queue", "prefill", "decode")),
)
NOT_FOUND = {"detail": "Not Found"}
ELSEWHERE = "http://elsewhere.example/v1/chat/completions"


class Fake:
    """What the server does; a test changes its attributes between requests."""

    def __init__(self, dialect: str = "vllm") -> None:
        self.dialect, self.url = dialect, ""
        self.fault, self.fault_from = "", 0  # what goes wrong, and from which request on
        self.image_tokens, self.bos, self.cached = 273, True, None
        self.a_chunk, self.pause, self.vision, self.others = 1, 0.004, 0.02, 0
        self.key: str | None = None
        self.models = ["tiny/DeepSeek-OCR"]
        self.watched = False  # whether the worker's extension is loaded
        self.shown: tuple[str, ...] | None = None  # the paths that a proxy lets through
        self.tokens = TOKENS
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.rows: list[list[Any]] = []
        self.totals = dict.fromkeys(TIMES, 0.0)
        self.finished = 0

    @property
    def prompt(self) -> list[int]:
        return [BOS] * self.bos + [IMAGE] * self.image_tokens + [50, 51]

    @property
    def metrics(self) -> bytes:
        lines = [
            f'vllm:{name}_seconds_sum{{engine="0"}} {total}' for name, total in self.totals.items()
        ]
        lines += [
            f'vllm:{name}_seconds_count{{engine="0"}} {self.finished}' for name in self.totals
        ]
        return "\n".join(lines).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else chunks arrive together
    fake: Fake

    def log_message(self, *_: Any) -> None:
        pass

    def say(self, value: Any, status: int = 200, **headers: str) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def refused(self) -> bool:
        """Whether the key is wrong; a careless server repeats it."""
        given = self.headers.get("Authorization")
        wrong = bool(self.fake.key) and given != f"Bearer {self.fake.key}"
        if wrong:
            self.say({"error": {"message": f"wrong key {given}"}}, 401)
        return wrong

    def do_GET(self) -> None:
        fake = self.fake
        answers = {
            "vllm": {"/version": {"version": "0.32.0"}, "/metrics": fake.metrics},
            "sglang": {"/get_server_info": {"version": "0.5.5"}},
            "sglang-2026": {"/server_info": {"version": "0.5.9"}},
            "llama.cpp": {"/props": {"build_info": "b6500-1a2b3c", "total_slots": 1}},
            "ollama": {"/api/version": {"version": "0.13.1"}},
        }.get(fake.dialect, {})
        if fake.shown is not None:
            answers = {path: answers[path] for path in answers if path in fake.shown}
        answers["/v1/models"] = {"data": [{"id": name} for name in fake.models]}
        if not self.refused():
            self.say(answers.get(self.path, NOT_FOUND), 200 if self.path in answers else 404)

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/collective_rpc" and fake.watched:
            taken, fake.rows = [time.monotonic(), fake.rows], []
            answers = {
                "ocr_watch": {"model": {"class": "DeepseekOCRForCausalLM", "dtype": "float32"}}
            }
            return self.say({"results": [answers.get(body["method"], taken)]})
        if self.path != "/v1/chat/completions":
            return self.say(NOT_FOUND, 404)
        if self.refused():
            return None
        fake.bodies.append(body)
        fake.headers.append(dict(self.headers))
        fault = fake.fault if len(fake.bodies) > fake.fault_from else ""
        if fault.isdigit():
            told = " ".join(
                ["no, said the server", *filter(None, [fake.key])]
            )  # it repeats the key, too
            return self.say({"error": {"message": told}}, int(fault))
        if fault in ("redirect", "whole"):
            return self.say(
                {"choices": []}, 307 if fault == "redirect" else 200, Location=ELSEWHERE
            )
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.stream(body, fault)
        return None

    def event(self, value: Any) -> None:
        data = value if isinstance(value, bytes) else f"data: {json.dumps(value)}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def go_wrong(self, fault: str) -> None:
        """What happens once half of the tokens are sent."""
        if fault == "stall":
            time.sleep(5)
        if fault == "disconnect":
            self.connection.shutdown(socket.SHUT_RDWR)
        while fault == "huge":
            self.event(b"data: " + b"x" * 10**6)
        sent = {
            "malformed": b"data: {not json\n\n",
            "mistyped": {"choices": [{"token_ids": ["four"]}]},
        }
        sent["error"] = {"error": {"message": "out of memory", "code": 500}}
        if fault in sent:
            self.event(sent[fault])

    def stream(self, body: dict[str, Any], fault: str) -> None:
        fake, begun = self.fake, time.monotonic()
        vllm, count = fake.dialect == "vllm", min(body.get("max_tokens", 99), len(fake.tokens))
        time.sleep(fake.vision)
        first, spent = begun + fake.vision / 4, fake.vision / 2
        fake.rows += [["sam", first, spent * 400, 1024]]
        fake.rows += [["language_model", first + spent / 2, 1.0, len(fake.prompt)]]
        choice: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        self.event({"choices": [choice], **({"prompt_token_ids": fake.prompt} if vllm else {})})
        self.event(b": ping\n\n")
        sent = time.monotonic()
        for start in range(0, count, fake.a_chunk):
            part = slice(start, min(start + fake.a_chunk, count))
            if start and start >= count // 2:
                self.go_wrong(fault)
            choice = {"delta": {"content": "".join(fake.tokens[part])}, "finish_reason": None}
            choice |= {"token_ids": IDS[part]} if vllm else {}
            if body.get("logprobs"):
                choice["logprobs"] = {
                    "content": [{"token": "x", "logprob": -0.5} for _ in IDS[part]]
                }
            self.event({"choices": [choice]})
            fake.rows += [["language_model", time.monotonic(), 0.4, 1]]
            time.sleep(fake.pause)
        last = {"delta": {}, "finish_reason": "length"}
        self.event(
            {"choices": [last | ({"token_ids": IDS[:count]} if fake.dialect == "sglang" else {})]}
        )
        times = (sent - begun, 0.001, (sent - begun) / 2, time.monotonic() - sent)
        for name, seconds in zip(fake.totals, times, strict=True):
            fake.totals[name] += seconds
        fake.finished += 1 + fake.others
        details = None if fake.cached is None else {"cached_tokens": fake.cached}
        usage = {"prompt_tokens": len(fake.prompt), "prompt_tokens_details": details}
        usage |= {"completion_tokens": count}
        end: dict[str, Any] = {"choices": [], "usage": usage}
        if fake.dialect == "llama.cpp":
            end["timings"] = {"prompt_ms": 1e3 * times[2], "predicted_ms": 1e3 * times[3]}
        self.event(end)
        self.event(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")


@contextlib.contextmanager
def served(dialect: str = "vllm") -> Iterator[Fake]:
    """A running fake."""
    fake = Fake(dialect)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"fake": fake}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield fake
    finally:
        server.shutdown()
        server.server_close()

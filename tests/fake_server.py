"""A small OpenAI-compatible server for tests: as vLLM, as SGLang or as neither, and failing as asked."""

from __future__ import annotations

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
IMAGE, BOS, EOS = 3, 0, 1


class Fake:
    """What the server does; a test changes its attributes between requests."""

    def __init__(self, dialect: str = "vllm") -> None:
        self.dialect, self.url = dialect, ""
        self.fault = ""  # what goes wrong, and (`fault_from`) from which request on
        self.fault_from = 0
        self.image_tokens, self.bos, self.cached = 273, True, None
        self.a_chunk, self.pause, self.vision, self.others = 1, 0.002, 0.02, 0
        self.key: str | None = None
        self.models = ["tiny"]
        self.watched = False  # whether the worker's extension is loaded
        self.bodies: list[dict[str, Any]] = []
        self.rows: list[list[Any]] = []
        stages = [f"request_{stage}_time" for stage in ("queue", "prefill", "decode")]
        self.totals = dict.fromkeys(("time_to_first_token", *stages, "e2e_request_latency"), 0.0)
        self.finished = 0

    @property
    def prompt(self) -> list[int]:
        return [BOS] * self.bos + [IMAGE] * self.image_tokens + [50, 51]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else chunks arrive together
    fake: Fake

    def log_message(self, *_: Any) -> None:
        pass

    def say(self, status: int, data: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def as_json(self, value: Any, status: int = 200) -> None:
        self.say(status, json.dumps(value).encode())

    def do_GET(self) -> None:
        fake, path = self.fake, self.path
        if fake.key and self.headers.get("Authorization") != f"Bearer {fake.key}":
            return self.as_json({"error": {"message": f"wrong key {self.headers['Authorization']}"}}, 401)
        if path == "/v1/models":
            return self.as_json({"data": [{"id": name} for name in fake.models]})
        if path == "/version" and fake.dialect == "vllm":
            return self.as_json({"version": "0.32.0"})
        if path == "/get_server_info" and fake.dialect == "sglang":
            return self.as_json({"version": "0.5.5"})
        if path == "/metrics" and fake.dialect == "vllm":
            lines = []
            for name, total in fake.totals.items():
                for part, value in (("sum", total), ("count", fake.finished)):
                    lines.append(f'vllm:{name}_seconds_{part}{{engine="0",model_name="tiny"}} {value}')
            return self.say(200, "\n".join(lines).encode(), "text/plain")
        return self.as_json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/collective_rpc" and fake.watched:
            answers = {"ocr_watch": {"model": {"class": "DeepseekOCRForCausalLM", "dtype": "float32"}}}
            rows, fake.rows = fake.rows, []
            taken = time.monotonic(), rows
            return self.as_json({"results": [answers.get(body["method"], taken)]})
        if self.path != "/v1/chat/completions":
            return self.as_json({"detail": "Not Found"}, 404)
        if fake.key and self.headers.get("Authorization") != f"Bearer {fake.key}":
            return self.as_json({}, 401)
        fake.bodies.append(body)
        fault = fake.fault if len(fake.bodies) > fake.fault_from else ""
        if fault.isdigit():
            return self.as_json({"error": {"message": "no, said the server"}}, int(fault))
        if fault == "redirect":
            return self.say(307, b"", Location="http://elsewhere.example/v1/chat/completions")
        if fault == "whole":
            return self.as_json({"choices": []})
        if fault == "huge":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"data: " + b"x" * 10**6)
            self.close_connection = True
            return None
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.stream(body, fault)
        return None

    def event(self, value: Any) -> None:
        data = value if isinstance(value, bytes) else f"data: {json.dumps(value)}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def stream(self, body: dict[str, Any], fault: str) -> None:
        fake, begun = self.fake, time.monotonic()
        vllm = fake.dialect == "vllm"
        time.sleep(fake.vision)
        if fake.watched:
            first, spent = begun + fake.vision / 4, fake.vision / 2
            fake.rows += [["sam", first, spent * 400, 1024]]
            fake.rows += [["language_model", first + spent / 2, 1.0, len(fake.prompt)]]
        choice: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        self.event({"choices": [choice], **({"prompt_token_ids": fake.prompt} if vllm else {})})
        self.event(b": ping\n\n")
        sent = time.monotonic()
        count = min(body.get("max_tokens", 99), len(IDS))
        for start in range(0, count, fake.a_chunk):
            part = slice(start, min(start + fake.a_chunk, count))
            if start and start >= count // 2:
                if fault == "stall":
                    time.sleep(5)
                if fault == "disconnect":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if fault == "malformed":
                    self.event(b"data: {not json\n\n")
                if fault == "error":
                    self.event({"error": {"message": "out of memory", "code": 500}})
            choice = {"index": 0, "delta": {"content": "".join(TOKENS[part])}, "finish_reason": None}
            if body.get("logprobs"):
                choice["logprobs"] = {"content": [{"token": "x", "logprob": -0.5} for _ in IDS[part]]}
            self.event({"choices": [choice | ({"token_ids": IDS[part]} if vllm else {})]})
            if fake.watched:
                fake.rows += [["language_model", time.monotonic(), 0.4, 1]]
            time.sleep(fake.pause)
        last = {"index": 0, "delta": {}, "finish_reason": "length"}
        self.event({"choices": [last | ({"token_ids": IDS[:count]} if fake.dialect == "sglang" else {})]})
        details = None if fake.cached is None else {"cached_tokens": fake.cached}
        usage = {"prompt_tokens": len(fake.prompt), "prompt_tokens_details": details}
        times = (sent - begun, 0.001, (sent - begun) / 2, time.monotonic() - sent, time.monotonic() - begun)
        for name, seconds in zip(fake.totals, times, strict=True):
            fake.totals[name] += seconds
        fake.finished += 1 + fake.others
        self.event({"choices": [], "usage": usage})
        self.event(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")


@contextlib.contextmanager
def served(dialect: str = "vllm") -> Iterator[Fake]:
    """A running fake."""
    fake = Fake(dialect)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"fake": fake}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield fake
    finally:
        server.shutdown()
        server.server_close()

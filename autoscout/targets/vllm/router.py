"""A router between a vLLM prefill server and a decode server: each request goes to the first for one token, then with
the returned KV cache parameters to the second, whose answer is streamed through.

    python router.py PORT PREFILL-PORT DECODE-PORT

All three run on this machine. It needs only Python and suffices to try the pair; production needs a real router (llm-d,
Dynamo, vLLM's own).
"""

import http.client
import json
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_CHUNK = 65_536
_ONE_TOKEN = {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1, "stream": False}
_READ_ONLY = {"do_remote_decode": True, "do_remote_prefill": False}
_READ_ONLY |= dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))


def prompt_only(body: dict[str, Any]) -> dict[str, Any]:
    """The request for the prefill server: with the shortest possible answer."""
    asked = {name: value for name, value in body.items() if name != "stream_options"}
    known = {name: value for name, value in _ONE_TOKEN.items() if name != "max_completion_tokens" or name in body}
    return {**asked, **known, "kv_transfer_params": _READ_ONLY}


class Router(BaseHTTPRequestHandler):
    prefill: int
    decode: int

    def do_GET(self) -> None:
        """/health needs both servers; everything else goes to the decode server."""
        if self.path == "/health" and self._asked(self.prefill, "GET", None, {})[0] != 200:
            self.send_error(503, "the server that reads prompts is not ready")
            return
        self._pass_on("GET", None, {})

    def do_POST(self) -> None:
        given = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        sent = {"Content-Type": "application/json", "X-Request-Id": str(uuid.uuid4())}
        if "/completions" not in self.path:
            self._pass_on("POST", given, sent)
            return
        try:
            body = json.loads(given)
            status, content = self._asked(self.prefill, "POST", json.dumps(prompt_only(body)).encode(), sent)
            read = json.loads(content)
        except ValueError:
            self.send_error(400, "no JSON")
            return
        if status != 200:
            self.send_error(status, "the server that reads prompts refuses")
            return
        self._pass_on("POST", json.dumps({**body, "kv_transfer_params": read.get("kv_transfer_params")}).encode(), sent)

    def _asked(self, port: int, method: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.request(method, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 503, b"{}"
        finally:
            connection.close()

    def _pass_on(self, method: str, body: bytes | None, headers: dict[str, str]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.decode)
        try:
            connection.request(method, self.path, body, headers)
            answer = connection.getresponse()
        except OSError:
            self.send_error(503, "the server that answers is not there")
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
        self.end_headers()  # HTTP/1.0: the body ends with the connection
        while part := answer.read1(_CHUNK):
            self.wfile.write(part)
            self.wfile.flush()
        connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """No log line per request."""


def serve(port: int, prefill: int, decode: int) -> ThreadingHTTPServer:
    handler = type("Here", (Router,), {"prefill": prefill, "decode": decode})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    return server


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:4])).serve_forever()

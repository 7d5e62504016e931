import argparse
import http.server
import os
import sys
import time

flags = argparse.ArgumentParser()
flags.add_argument("--model-path", required=True)
flags.add_argument("--port", type=int, default=30000)
flags.add_argument("--tp-size", type=int, default=1)
flags.add_argument("--dp-size", type=int, default=1)
flags.add_argument("--max-running-requests", type=int, default=2048)
flags.add_argument("--chunked-prefill-size", type=int, default=8192)
flags.add_argument("--schedule-conservativeness", type=float, default=1.0)
flags.add_argument("--enable-mixed-chunk", action="store_true")
told = flags.parse_args()
if os.environ.get("END") == "crash":
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", file=sys.stderr)
    sys.exit(1)
began = time.monotonic()


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if time.monotonic() > began + 0.4 else 503)
        self.end_headers()
        self.wfile.write(str(min(told.max_running_requests, 64)).encode())


http.server.HTTPServer(("127.0.0.1", told.port), Server).serve_forever()

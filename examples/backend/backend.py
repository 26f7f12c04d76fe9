"""Your server beside VoiceLoop: it mints client secrets, and answers a tool. The standard library.

    VOICELOOP_KEY=the-server-key SHOP_CALLER_KEY=sixteen-letters-or-more \\
        python examples/backend/backend.py --voiceloop http://127.0.0.1:8080 --port 9000

``POST /token`` gives a page a secret for one call, with who is logged in as its claims. A tool of
the agent's file with ``url = "http://127.0.0.1:9000/orders"`` and ``caller_key`` is answered by
``POST /orders``, which believes the signed header and not the model.
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ORDERS = {"c-17": "on its way, it comes on Friday"}
OLDEST_S = 60
LONGEST_BODY = 65_536


def mint(voiceloop: str, customer: str) -> dict[str, object]:
    """A secret that opens one call of ten minutes for this customer, and no other agent."""
    asked = {
        "expires_after": {"anchor": "created_at", "seconds": 60},
        "max_session_seconds": 600,
        "claims": {"customer": customer},
        "browser": True,  # who holds it changes neither instructions nor tools
    }
    request = urllib.request.Request(
        f"{voiceloop}/v1/realtime/client_secrets",
        json.dumps(asked).encode(),
        {
            "Authorization": f"Bearer {os.environ['VOICELOOP_KEY']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        told = json.load(answer)
    return {"value": told["value"], "expires_at": told["expires_at"]}


def caller_of(header: str, tool: str) -> dict[str, object]:
    """Who calls, as VoiceLoop has signed it. Raises: ValueError: nobody that it knows."""
    body, _, mac = header.partition(".")
    key = os.environ["SHOP_CALLER_KEY"].encode()
    if not hmac.compare_digest(hmac.new(key, body.encode(), hashlib.sha256).hexdigest(), mac):
        raise ValueError("forged")
    caller = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    if caller["tool"] != tool or abs(time.time() - caller["at"]) > OLDEST_S:
        raise ValueError("of another call")
    return dict(caller)


class Backend(BaseHTTPRequestHandler):
    voiceloop = ""

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length") or 0), LONGEST_BODY)
        self.rfile.read(length)
        try:
            if self.path == "/token":
                # Here you look at your own session cookie. A stranger gets no token.
                self._answer(200, mint(self.voiceloop, "c-17"))
            elif self.path == "/orders":
                caller = caller_of(self.headers.get("VoiceLoop-Caller", ""), "order_status")
                claims = caller["claims"]
                customer = claims.get("customer", "") if isinstance(claims, dict) else ""
                self._answer(200, {"status": ORDERS.get(customer, "there is no order")})
            else:
                self._answer(404, {"error": "no such path"})
        except ValueError as error:
            self._answer(403, {"error": str(error)})

    def _answer(self, code: int, body: dict[str, object]) -> None:
        written = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: a line a request is the proxy's."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--voiceloop", default="http://127.0.0.1:8080")
    parser.add_argument("--port", type=int, default=9000)
    chosen = parser.parse_args()
    Backend.voiceloop = chosen.voiceloop
    with ThreadingHTTPServer(("127.0.0.1", chosen.port), Backend) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()

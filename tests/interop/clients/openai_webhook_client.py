"""The stock openai package takes what our webhook is sent, and refuses a forged or stale one.

    python openai_webhook_client.py SECRET < {"body": ..., "headers": {...}}

Prints the call's id.
"""

from __future__ import annotations

import json
import sys

from openai import InvalidWebhookSignatureError, OpenAI

secret, told = sys.argv[1], json.load(sys.stdin)
client = OpenAI(api_key="none")
event = client.webhooks.unwrap(told["body"], told["headers"], secret=secret)
assert event.type == "realtime.call.incoming", event
headers = {one.name: one.value for one in event.data.sip_headers}
assert headers["From"] == "+49301" and headers["To"] == "+49309", headers
for forged in (
    {"body": told["body"].replace("+49301", "+49302"), "headers": told["headers"]},
    {"body": told["body"], "headers": {**told["headers"], "webhook-timestamp": "1700000000"}},
):
    try:
        client.webhooks.unwrap(forged["body"], forged["headers"], secret=secret)
    except InvalidWebhookSignatureError:
        continue
    raise SystemExit("expected a forged event to be refused, found it taken")
print(event.data.call_id)

"""Types turns into a call and prints what is answered: ``python client.py URL WORDS...``.

The key, or a client secret, is taken from ``VOICELOOP_KEY``. Needs ``pip install websockets``.
"""

import json
import os
import sys

from websockets.sync.client import ClientConnection, connect


def say(call: ClientConnection, words: str) -> str:
    """One turn; the answer, after what the server's tools have told."""
    content = [{"type": "input_text", "text": words}]
    item = {"type": "message", "role": "user", "content": content}
    call.send(json.dumps({"type": "conversation.item.create", "item": item}))
    call.send(json.dumps({"type": "response.create"}))
    answer: list[str] = []
    while True:
        event = json.loads(call.recv(timeout=30))
        if event["type"] == "error":
            raise SystemExit(event["error"]["message"])
        if event["type"] == "response.output_text.done":
            answer.append(event["text"])
        if event["type"] == "response.done":
            called = [one["type"] == "function_call" for one in event["response"]["output"]]
            if not any(called):  # else the server calls its tool, and another response follows
                return " ".join(answer)


def main() -> None:
    url, *turns = sys.argv[1:]
    key = os.environ.get("VOICELOOP_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with connect(url, additional_headers=headers) as call:
        session = {"type": "realtime", "output_modalities": ["text"]}
        call.send(json.dumps({"type": "session.update", "session": session}))
        for words in turns:
            print(say(call, words), flush=True)


if __name__ == "__main__":
    main()

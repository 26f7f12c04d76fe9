"""Writes the model card's sample calls: `python -m engine.recipes.sample_calls --model DIR`.

The callers are generated with held-out names and items; the agent's own replies go on into the
history, and a tool answers what the generator planned. Nothing is chosen or edited.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .conversations.call import Call
from .conversations.calls import generate_call
from .conversations.dialogues import data_directory
from .evaluate_agent import EMBEDDED_AGENT
from .model.agent_model import AgentModel
from .model.chat_format import CALL_OPEN, ChatEncoder
from .model.decoding import generate_replies, load_agent
from .training.corpus import Corpus

_MAX_AGENT_STEPS = 2  # a tool call, and the reply that uses its result


def replay(call: Call, model: AgentModel, encoder: ChatEncoder) -> list[tuple[str, str]]:
    """Play a generated caller against the model; returns (speaker, text) lines."""
    history: list[dict[str, Any]] = [call.messages[0]]
    lines: list[tuple[str, str]] = []
    for at, message in enumerate(call.messages):
        if at == 1 and message["role"] == "assistant":
            history.append(message)
            lines.append(("agent (given)", str(message["content"])))
        if message["role"] != "user":
            continue
        history.append(message)
        lines.append(("caller", str(message["content"])))
        planned = [m for m in call.messages[at + 1 : at + 3] if m["role"] == "tool"]
        for _ in range(_MAX_AGENT_STEPS):
            text = encoder.format.render(history, call.tools, True)
            prompt = encoder.tokenizer.encode(text, add_special_tokens=False).ids
            (tokens,) = generate_replies(model, [prompt], encoder.end)
            reply = encoder.tokenizer.decode(tokens, skip_special_tokens=True)
            history.append({"role": "assistant", "content": reply})
            lines.append(("agent", reply))
            if CALL_OPEN not in reply:
                break
            history.append(planned[0] if planned else {"role": "tool", "content": '{"ok":false}'})
            lines.append(("tool", str(history[-1]["content"])))
    return lines


def as_markdown(number: int, call: Call, lines: list[tuple[str, str]]) -> str:
    """One call as a section of the card."""
    tools = ", ".join(f"`{tool['function']['name']}`" for tool in call.tools)
    parts = [f"### Call {number}", f"*{str(call.messages[0]['content']).replace(chr(10), ' ')}*"]
    if tools:
        parts.append(f"Tools: {tools}")
    parts.append("\n".join(f"- **{speaker}**: {text}" for speaker, text in lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print sample calls for the model card.")
    parser.add_argument("--model", type=Path, default=EMBEDDED_AGENT)
    parser.add_argument("--data", type=Path, help="folder with dialogues/ (else $VOICELOOP_DATA)")
    parser.add_argument("--calls", type=int, default=20)
    given = parser.parse_args()
    model, encoder = load_agent(given.model)
    folder = data_directory(given.data)
    train, test = Corpus(folder), Corpus(folder, "test")
    for number in range(1, given.calls + 1):
        call = generate_call(f"card/{number}", train.noise, test.chatter, held_out=True)
        print(as_markdown(number, call, replay(call, model, encoder)), end="\n\n")


if __name__ == "__main__":
    main()

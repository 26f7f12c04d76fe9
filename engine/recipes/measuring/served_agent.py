"""An agent's model as the server runs it: in int8, drafted for, its calls bound and counted.

Owns one engine that answers whole prompts, one after the other. `decoding` asks the weights alone:
what differs between the two is what the engine makes of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.engine import Engine
from engine.load.gguf import is_gguf
from engine.text.counted_lists import CountedTurn
from engine.types import Done, EngineConfig, SamplingParams, TextDelta, ToolCall

from ..model.chat_format import CALL_CLOSE, CALL_OPEN

MAX_TOKENS = 72  # of a reply, as `generate_replies` has it


class ServedAgent:
    """`reply` answers greedily. draft: a smaller model of the same tokenizer, if there is one.

    A GGUF file, and a model with an adapter merged, have n-grams alone, as they are served.
    """

    def __init__(
        self, folder: Path, draft: Path | None = None, adapter: Path | None = None
    ) -> None:
        """Raises: EngineError."""
        is_drafted = draft is not None and (draft / "config.json").exists()
        config = EngineConfig(
            quant="int8",
            ngram_draft=True,
            adapter_dir=adapter,
            draft_dir=draft if is_drafted and adapter is None and not is_gguf(folder) else None,
        )
        self._engine = Engine.load(folder, config)

    def reply(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        """Return what is said, and the calls behind it as the model's template writes them.

        tools: as chat templates take them. Raises: EngineError, of the request.
        """
        offered = json.dumps([tool["function"] for tool in tools]) if tools else None
        prompt = self._engine.text.encode_chat(messages, tools, add_generation_prompt=True)
        branch = self._engine.branch("reply")
        try:
            branch.commit(prompt, SamplingParams(MAX_TOKENS, offered_tools=offered))
            said = (str(m["content"]) for m in reversed(messages) if m["role"] == "user")
            return self._read(CountedTurn(next(said, ""), tools)).strip()
        finally:
            branch.close()

    def _read(self, turn: CountedTurn) -> str:
        """Up to the end of the reply; one that breaks off within a call ends before it."""
        said = ""
        while True:
            for event in self._engine.step():
                match event:
                    case TextDelta(text=text):
                        said += text
                    case ToolCall(name=name, arguments_json=arguments):
                        settled = turn.settle(name, arguments)
                        call = f'{{"name": {json.dumps(name)}, "arguments": {settled}}}'
                        said += CALL_OPEN + call + CALL_CLOSE
                    case Done():
                        return said

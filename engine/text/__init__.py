"""Text and tokens: tokenizer, chat template, detokenizer, grammars, tool calls.

Owns everything between messages and token ids, in both directions. Start reading at ``text.py``.
"""

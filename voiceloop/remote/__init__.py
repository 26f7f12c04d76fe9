"""Models behind somebody else's HTTP service, as the contracts of `voiceloop.backends`.

Owns the connection to OpenAI-compatible services (vLLM, SGLang, any speech server), their circuit
breaker, and the reader of the end of a turn that stands beside a remote language model.
Others may use `language`, `recognizer`, `transcriber`, `voice` and `end_reader`.
Start reading at `service.py`, then `language.py`.
"""

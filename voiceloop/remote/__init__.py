"""Models behind somebody else's HTTP service, as the contracts of `voiceloop.backends`.

Owns the connection to OpenAI-compatible services (vLLM, SGLang, any speech server), their circuit
breaker, (`readers`) the embedded models that stand beside them to read the end of a turn, and
(`upstream`) servers that answer in sound.
Others may use `language`, `recognizer`, `transcriber`, `voice` and `readers`.
Start reading at `service.py`, then `language.py`.
"""

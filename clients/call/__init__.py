"""A simulated call: the caller's script and recordings, how it is played, what came of it.

Owns the bundled call (utterances as FLAC, ``call.toml`` says when each is spoken) and the record of
any call. Start reading at ``script.py``, then ``simulated_call.py``.
"""

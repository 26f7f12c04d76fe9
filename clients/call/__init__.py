"""The bundled call: a caller's utterances as FLAC, the script that says when each is spoken."""

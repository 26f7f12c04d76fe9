"""A speech-to-speech server behind the Realtime protocol: a language model that brings its voice.

Owns the connection of each call to it, what its conversation holds beside ours, and the sound and
the words of its responses. Others may use `model`. Start reading at `model.py`, then `call.py`.
"""

"""The language-model engine: branches of one conversation on one paged KV cache.

Start reading at ``engine.py`` (the public face), then ``types.py`` (what goes in and comes out).
"""

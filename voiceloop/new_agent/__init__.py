"""A folder for an agent of one's own: ``voiceloop init``.

Owns what is asked, and the files that are made of it (`template/`). Start at `options.py`.
"""

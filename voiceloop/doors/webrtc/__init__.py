"""Calls over WebRTC: an offer, our answer, the one UDP port, and each peer's sound and events.

Owns what a browser's end needs of us; nothing here is imported before the first offer but what is
pure. Start reading at `door.py`.
"""

"""Lines into a call besides the WebSocket: sound in packets of its own, events beside it.

Owns what such a line is made of (`rtp/`: packets, what is made of lost ones, reports). Start
reading at `rtp/receive.py`.
"""

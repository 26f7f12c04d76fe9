"""Sound in RTP packets: taken in order, made good where lost, sent by the clock, reported on.

Owns the packet (`packet`), what comes (`receive`, with its order and loss in `reception`), what
goes (`send`), the reports of both (`rtcp`), and a call's end of all that (`end`), which alone has a
timer of the event loop: the others are pure. Doors may use all of it. Start reading at `end.py`.
"""

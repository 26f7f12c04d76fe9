"""Sound in RTP packets: taken in order, made good where lost, sent by the clock, reported on.

Owns the packet (`packet`), what comes (`receive`, with its order and loss in `reception`), what
goes (`send`) and the reports of both (`rtcp`). Pure: no socket, no event loop; time and the codec
are passed in. Doors may use all of it. Start reading at `receive.py`.
"""

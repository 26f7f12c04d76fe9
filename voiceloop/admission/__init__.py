"""Who is let in, and what is left out when the machine has too much to do.

Owns the slots and the pace of connections (`slots`), the ladder of overload (`ladder`), and how
many calls this machine carries, learnt while it serves (`room`). Pure: load and time are passed in;
`server/load_watch.py` measures and asks. Others may use all of it.
Start reading at `ladder.py`.
"""

"""Admission of callers, and the work that is left out while the machine is overloaded.

Owns the places of a server and who has one kept (`places`), how many calls this machine carries,
learnt while it serves (`room`, over the workers of each role together, `pools`), the three levels
of load (`overload`), and rates and quotas (`bucket`, `allowance`). Pure: load and time are passed
in; `server/load_watch.py` measures and asks. Others may use all of it.
Start reading at `room.py`.
"""

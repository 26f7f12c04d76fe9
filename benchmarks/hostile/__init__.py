"""One hostile client of each kind beside a caller: what it costs the caller, and the server's
memory. Start reading at `__main__`."""

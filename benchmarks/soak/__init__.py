"""Calls for minutes or hours with a fault in every minute: who is left without an answer, and what
grows. Start reading at `__main__`."""

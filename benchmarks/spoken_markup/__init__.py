"""Five hundred replies of the agents that ship, and whether markup of a call, or the same over and
over, was ever spoken. Start reading at `__main__`; what counts as either is in `judge`."""

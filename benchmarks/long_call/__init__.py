"""A call of an hour, typed at speed: what its window forgets, and what a slide costs."""

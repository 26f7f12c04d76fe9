"""Rows of tokens and the loops that learn from them."""

"""What the benchmarks of whole calls share: their turns, callers, bars and plots."""

"""What a caller and an agent do next: the moves that calls are put together from."""

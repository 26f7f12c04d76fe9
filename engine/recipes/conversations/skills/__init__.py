"""The moves of caller and agent that generated calls are put together from."""

"""Two language models in one call, in served calls: the parts of ``benchmarks.two_models``."""

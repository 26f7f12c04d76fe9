"""The parts of ``python -m benchmarks.engine_bench``: speed, exactness, the GPU, llama.cpp."""

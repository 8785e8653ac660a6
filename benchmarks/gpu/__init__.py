"""Parts of `benchmarks/gpu_check.py`: what it checks and measures on a machine with a GPU."""

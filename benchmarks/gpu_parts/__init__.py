"""The parts of `benchmarks/gpu.py`: one file each, with `CASES`, `NOTE` and `measure(case, setting) -> rows`."""

"""What a change of the insides leaves as it is, written down in files beside: `python -m tests.golden.write`."""

"""Environments of other libraries behind our contract; each needs its library."""

"""Clients of environment servers: one environment per protocol, over a pool of servers."""

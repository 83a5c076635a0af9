"""Environments on other machines: a server that shows one as sessions, and clients that play them."""

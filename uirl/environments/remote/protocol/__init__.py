"""What travels between clients and servers of environments, as data."""

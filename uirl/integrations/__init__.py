"""The house under other people's roofs."""

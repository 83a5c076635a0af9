"""The channels."""

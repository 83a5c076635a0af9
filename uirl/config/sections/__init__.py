"""The sections of the config: keys, types, defaults and what they mean."""

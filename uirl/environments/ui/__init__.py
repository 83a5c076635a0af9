"""The one vocabulary of user interface actions: its words, their reading, the names of keys."""

"""What the code of a policy runs in: the process of its Python programs, and rooms for its shell."""

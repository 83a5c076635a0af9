"""A run of verl's trainer with our curriculum, credit and record."""

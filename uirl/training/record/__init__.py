"""What a run writes down and tells the person who watches it."""

"""How `uirl/tiny-vlm-grounded` learned to see: synthetic screens, questions about them, training, accuracy."""

"""MiniWoB++ in a real browser: the environment, facts about its pages, their curriculum tags."""

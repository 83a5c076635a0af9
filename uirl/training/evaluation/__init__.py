"""How good a policy is, with its uncertainty, and what a policy scores that cannot see."""

"""Between actors and learner: groups of episodes go out, whole groups come back, weights go out with a version."""

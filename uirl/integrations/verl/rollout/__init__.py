"""Episodes of ours in verl's rollout: the agent loop, its workers, and what verl learns from."""

"""`make chaos`: a run whose processes are killed by a seeded schedule, and an account of what came of it."""

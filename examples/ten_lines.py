"""A game of your own, and an agent that learns to play it."""

import random

from uirl import BaseEnvironment, ConfigStore, RayPPOTrainer


class Doors(BaseEnvironment):
    """One of two doors has the prize, and the sign over it lies."""

    def reset(self, seed=None):
        self.rng = random.Random(seed)
        self.sign = self.rng.choice(["left", "right"])
        return f"the sign says {self.sign}"

    def step(self, action):
        won = action.strip() == ("right" if self.sign == "left" else "left")
        return "you open the door", float(won), True, {"success": won}

    def get_state_description(self):
        return f"the sign says {self.sign}"

    def expert_action(self):
        """Knows the two words and nothing about the sign: enough to start from."""
        return self.rng.choice(["left", "right"])


def main(updates: int = 40, runs_dir: str = "runs") -> dict:
    config = ConfigStore()
    config.model.model_name = "uirl/tiny-lm"
    config.inference.max_tokens = 4
    config.training.warm_start.steps = 50
    config.training.warm_start.stop_at_success = None
    config.logging.run_name, config.logging.runs_dir = "doors", runs_dir
    trainer = RayPPOTrainer(config, Doors())
    summary = trainer.fit(num_epochs=1, num_iters_per_epoch=updates)
    trainer.cleanup()
    return summary


if __name__ == "__main__":
    main()

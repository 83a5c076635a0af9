"""A game of your own, and an agent that learns to play it: the program of the README."""

import random

from uirl import BaseEnvironment, ConfigStore, RayPPOTrainer


class Doors(BaseEnvironment):
    """One of two doors has the prize, and the sign over it lies."""

    def reset(self, seed=None):
        self.rng = random.Random(seed)
        self.sign = self.rng.choice(["left", "right"])
        return f"the sign says {self.sign}"

    def step(self, action):
        won = action.strip() == {"left": "right", "right": "left"}[self.sign]
        return "you open the door", float(won), True, {"success": won}

    def get_state_description(self):
        return f"the sign says {self.sign}"

    def expert_action(self):
        """Shows the two words; which of them wins has to be found out."""
        return self.rng.choice(["left", "right"])


config = ConfigStore()
config.model.model_name = "uirl/tiny-lm"  # or a HuggingFace id, or a folder
trainer = RayPPOTrainer(config, Doors())
trainer.fit(num_epochs=1, num_iters_per_epoch=20)
trainer.cleanup()

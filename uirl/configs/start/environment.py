"""An environment of your own: say the largest of five digits."""

import random

from uirl import BaseEnvironment


class Largest(BaseEnvironment):
    """Five digits are shown; the largest of them is the right answer."""

    max_turns = 1
    demonstrator_may_fail = True

    def reset(self, seed=None):
        """Begin an episode and return what the agent sees first. The seed decides everything that is drawn."""
        rng = random.Random(seed)
        self.digits = [rng.randint(0, 9) for _ in range(5)]
        self.shown = rng.choice([max(self.digits), rng.choice(self.digits)])
        return self.get_state_description()

    def step(self, action):
        """Return (what the agent sees next, reward, whether the episode is over, {"success": was it solved})."""
        won = action.strip() == str(max(self.digits))
        return "right" if won else "wrong", float(won), True, {"success": won}

    def get_state_description(self):
        return " ".join(map(str, self.digits))

    def expert_action(self):
        """Demonstrate: half of the time the right answer, else one of the digits. A model that reads needs none."""
        return str(self.shown)

    def controls(self):
        """Return policies that must not succeed: they are played after the training and told beside its success."""
        return {"always_nine": "9"}

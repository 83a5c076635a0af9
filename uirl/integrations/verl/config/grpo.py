"""GRPO's settings in one object, for people who come with a config of verl's."""

from __future__ import annotations

import copy
from typing import Any

from uirl.config import ConfigStore, yaml_text
from uirl.errors import ConfigError
from uirl.integrations.verl.config.keys import put
from uirl.integrations.verl.config.mapping import verl_values


class CustomGRPOTrainer:
    """GRPO with asymmetric clipping (Yu et al. 2025, arXiv:2503.14476, eq. 10): an upper clip further from 1 than the
    lower one lets unlikely tokens gain. It holds the settings; `create_trainer` trains with them.
    """

    def __init__(
        self,
        eps_low: float = 0.2,
        eps_high: float = 0.3,
        normalize_by_std: bool = True,
        kl_coef: float = 0.0,
    ) -> None:
        """Check the settings and keep them.

        Args:
            eps_low, eps_high: Distances of the lower and the upper clip of the probability ratio from 1.
            normalize_by_std: Advantages are divided by the spread of their group; False: Dr. GRPO's.
            kl_coef: Weight of the KL term of the loss, against the policy at the start; 0: none.

        Raises ConfigError for a number out of range.
        """
        if not 0 < eps_low < 1 or not eps_high > 0 or not kl_coef >= 0:
            raise ConfigError(
                f"expected 0 < eps_low < 1, eps_high > 0 and kl_coef >= 0, got {eps_low}, {eps_high} and {kl_coef}"
            )
        self.eps_low, self.eps_high = eps_low, eps_high
        self.normalize_by_std, self.kl_coef = normalize_by_std, kl_coef

    def update_config_for_verl(self, config: Any) -> Any:
        """Return a copy of `config`, a ConfigStore or a whole config of verl's (OmegaConf), with these settings.

        Raises ConfigError for anything else.
        """
        settings = {
            "training.adv_estimator": "grpo",
            "training.clip_ratio_low": self.eps_low,
            "training.clip_ratio_high": self.eps_high,
            "algorithm.normalize_by_std": self.normalize_by_std,
            "algorithm.kl_loss_coef": self.kl_coef,
        }
        ours = config if isinstance(config, ConfigStore) else ConfigStore()
        ours = ours.override([f"{key}={yaml_text.render(value).strip()}" for key, value in settings.items()])
        if isinstance(config, ConfigStore):
            return ours
        if not hasattr(config, "actor_rollout_ref"):
            raise ConfigError(f"expected a ConfigStore or verl's config, got {type(config).__name__}")
        changed = copy.deepcopy(config)
        try:
            for key, value in verl_values(ours, settings).items():
                put(changed, key, value)
        except ConfigError as error:
            raise ConfigError(
                f"{error} Expected a whole config of verl's; a file in verl's terms becomes one with "
                "uirl.integrations.verl.load_verl_config(path)[0]"
            ) from error
        return changed

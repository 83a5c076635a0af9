"""The whole of reinforcement learning for agents on one page: no trainer, no run directory, the same parts."""

import asyncio

from uirl import (
    Collector,
    ConfigStore,
    EngineAgent,
    EpisodeLimits,
    EpisodeOptions,
    EpisodeSpec,
    ExpertAgent,
    GuessNumberEnvironment,
    ImageStore,
    Learner,
    Policy,
    SamplingParams,
    Task,
    TransformersInferenceEngine,
    create_parser,
    samples_of,
)
from uirl.inference import ChatRenderer
from uirl.rollout import derive_seed

GROUPS, GROUP_SIZE = 32, 8


async def learn(updates: int) -> list[float]:
    config = ConfigStore().override(["model.model_name=uirl/tiny-lm", "training.adv_estimator=grpo"])
    policy = Policy.from_config(config)
    images = ImageStore()
    learner = Learner(policy, config, images)
    engine = TransformersInferenceEngine(policy.loaded, shared=True)
    environment = GuessNumberEnvironment(n=7, guesses=3, demonstrator="random")
    chat, parser = ChatRenderer(policy.loaded), create_parser(environment.action_format)
    collector = Collector(environment, chat, parser, images, EpisodeOptions(EpisodeLimits(max_turns=3)))
    task, sampling = Task("higher or lower"), SamplingParams(max_tokens=4)

    for step in range(40):  # warm start: imitate someone who knows what a guess looks like
        specs = [EpisodeSpec(task, 1000 * step + i, None, f"demo-{step}-{i}") for i in range(32)]
        shown = await collector.collect(specs, lambda spec: ExpertAgent(chat, parser))
        learner.supervised([sample for t in shown for sample in samples_of(t)])

    curve = []
    for step in range(updates):
        await engine.update_weights(None, learner.version)
        specs = [
            EpisodeSpec(task, 10**6 + step * GROUPS + g, derive_seed(step, g, m), f"{step}-{g}-{m}", f"{step}-{g}")
            for g in range(GROUPS)
            for m in range(GROUP_SIZE)
        ]
        played = await collector.collect(specs, lambda spec: EngineAgent(engine, sampling, spec.trajectory_id))
        learner.update([sample for t in played if t.failure is None for sample in samples_of(t)])
        curve.append(sum(t.total_reward() for t in played) / len(played))
        print(f"update {step}: success {curve[-1]:.3f}")
    return curve


if __name__ == "__main__":
    asyncio.run(learn(updates=60))

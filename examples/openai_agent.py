"""An agent written for the openai client, unmodified, learns: uirl is the server it talks to."""

import asyncio
import random
from typing import Any

from openai import OpenAI

from uirl import (
    ConfigStore,
    EpisodeSpec,
    ImageStore,
    Learner,
    Policy,
    SamplingParams,
    ScriptedInferenceEngine,
    Task,
    TransformersInferenceEngine,
    samples_of,
)
from uirl.inference import ChatRenderer
from uirl.rollout import derive_seed
from uirl.rollout.endpoint import AgentCollector, ModelEndpoint


CLIENT = OpenAI(
    base_url="http://127.0.0.1", api_key="none"
)  # connections are shared, as in any program with many agents


def play(base_url: str, api_key: str, task: Any) -> float:
    """An ordinary program: it asks a model for guesses, and knows nothing of how the model learns."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    secret = random.Random(task.seed).randint(1, 7)
    messages: list[Any] = [{"role": "user", "content": "guess 1-7"}]
    for _ in range(3):
        reply = client.chat.completions.create(model="gpt-4o", messages=messages, max_tokens=4)
        guess = reply.choices[0].message.content or ""
        if guess.strip() == str(secret):
            return 1.0
        hint = "higher" if guess.isdecimal() and int(guess) < secret else "lower"
        messages += [{"role": "assistant", "content": guess}, {"role": "user", "content": hint}]
    return 0.0


GROUPS, GROUP_SIZE = 16, 8
SETTINGS = [
    "model.model_name=uirl/tiny-lm",
    "training.adv_estimator=grpo",
    "training.learning_rate=1.0e-3",
]


def specs(name: str, groups: int) -> list[EpisodeSpec]:
    """The episodes of one update: `groups` secrets, each guessed at by a group."""
    return [
        EpisodeSpec(
            Task("higher or lower"), derive_seed(name, g), derive_seed(name, g, m), f"{name}-{g}-{m}", f"{name}-{g}"
        )
        for g in range(groups)
        for m in range(GROUP_SIZE)
    ]


async def learn(updates: int) -> list[float]:
    config = ConfigStore().override(SETTINGS)
    policy, images = Policy.from_config(config), ImageStore()
    learner = Learner(policy, config, images)
    chat = ChatRenderer(policy.loaded)

    # warm start: the same program, played against somebody who says any number
    babbler = ScriptedInferenceEngine(
        lambda request: chat.demonstration(str(random.Random(request.sampling.seed).randint(1, 7)))
    )
    async with ModelEndpoint(babbler, policy.loaded) as endpoint:
        shown = await AgentCollector(endpoint, play).collect(specs("demo", 16))
    samples = [sample for t in shown for sample in samples_of(t)]
    for step in range(60):
        learner.supervised(random.Random(step).sample(samples, 32))

    curve = []
    engine = TransformersInferenceEngine(policy.loaded, shared=True)
    async with ModelEndpoint(engine, policy.loaded) as endpoint:
        collector = AgentCollector(endpoint, play, sampling=SamplingParams(max_tokens=4))
        for step in range(updates):
            await engine.update_weights(None, learner.version)
            played = await collector.collect(specs(str(step), GROUPS))
            learner.update([sample for t in played if t.failure is None for sample in samples_of(t)])
            curve.append(sum(t.total_reward() for t in played) / len(played))
            print(f"update {step}: success {curve[-1]:.3f}", flush=True)
    return curve


if __name__ == "__main__":
    asyncio.run(learn(updates=40))

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
from uirl.serving import AgentCollector, ModelEndpoint

CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="none")  # agents share its connections


def play(base_url: str, api_key: str, task: Any) -> float:
    """An ordinary program: it lets a model guess a number, and knows nothing of how models learn."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    secret, low, high = random.Random(task.seed).randint(1, 7), 1, 7
    messages: list[Any] = []
    for _ in range(3):
        messages.append({"role": "user", "content": f"guess {low}-{high}"})
        reply = client.chat.completions.create(model="gpt-4o", messages=messages, max_tokens=4)
        said = reply.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": said})
        guess = int(said) if said.isdecimal() else 0
        if guess == secret:
            return 1.0
        low, high = (max(low, guess + 1), high) if guess < secret else (low, min(high, guess - 1))
    return 0.0


GROUPS, GROUP_SIZE = 16, 8
SETTINGS = [
    "model.model_name=uirl/tiny-lm",
    "training.adv_estimator=grpo",
    "training.learning_rate=1.0e-3",
    "training.update_epochs=2",
]


def specs(name: str) -> list[EpisodeSpec]:
    """The episodes of one update: every group guesses at a secret of its own."""
    return [
        EpisodeSpec(Task("guess"), derive_seed(name, g), derive_seed(name, g, m), f"{name}-{g}-{m}", f"{name}-{g}")
        for g in range(GROUPS)
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
        shown = await AgentCollector(endpoint, play).collect(specs("shown"))
    samples = [sample for t in shown for sample in samples_of(t)]
    for step in range(150):
        learner.supervised(random.Random(step).sample(samples, 32))

    curve = []
    engine = TransformersInferenceEngine(policy.loaded, shared=True)
    async with ModelEndpoint(engine, policy.loaded) as endpoint:
        collector = AgentCollector(endpoint, play, sampling=SamplingParams(max_tokens=4))
        for step in range(updates):
            await engine.update_weights(None, learner.version)
            played = await collector.collect(specs(str(step)))
            learner.update([sample for t in played if t.failure is None for sample in samples_of(t)])
            curve.append(sum(t.total_reward() for t in played) / len(played))
            print(f"update {step}: success {curve[-1]:.3f}", flush=True)
    return curve


if __name__ == "__main__":
    asyncio.run(learn(updates=40))

"""Actors on several environment servers and one learner: what the actors play goes through a queue, the learner trains
on it while they play on, and publishes its weights to them.

    python examples/train_multi_actor.py                          # starts two servers on this machine
    python examples/train_multi_actor.py http://vm1:8000 http://vm2:8000
"""

import asyncio
import contextlib
import queue
import subprocess
import sys

from uirl import (
    Collector,
    EpisodeSpec,
    ExpertAgent,
    MultiActorOptions,
    MultiActorRunner,
    RejectionSampling,
    Task,
    Trainer,
    VLMWrapper,
    create_environment,
    create_parser,
    samples_of,
)

ACTORS, BATCH = 8, 64
GOAL = "guess the number"
SERVE = [
    "serve",
    "--env",
    "guess_number",
    "--option",
    "n=3",
    "--option",
    "guesses=2",
    "--option",
    "demonstrator=random",
]
"""Guess a number from 1 to 3 in two tries, told higher or lower; the demonstrator knows what a guess looks like."""


@contextlib.contextmanager
def servers(count):
    """The addresses of `count` servers of their own processes."""
    with contextlib.ExitStack() as stack:
        urls = []
        for _ in range(count):
            command = [sys.executable, "-m", "uirl.cli.main", *SERVE, "--port", "0", "--sessions", "64"]
            server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(server.terminate)
            urls.append(server.stdout.readline().split(" on ")[1].split()[0])
        yield urls


async def warm_start(trainer, urls, steps=40):
    """Imitate the servers' demonstrator, who shows what a guess looks like."""
    environment = create_environment("remote", {"urls": urls})
    chat, parser = trainer.model.chat, create_parser(environment.action_format)
    collector = Collector(environment, chat, parser, trainer.images, parallel=16)
    for step in range(steps):
        specs = [EpisodeSpec(Task("guess", goal=GOAL), 1000 * step + i, None, f"demo-{step}-{i}") for i in range(16)]
        shown = await collector.collect(specs, lambda spec: ExpertAgent(chat, parser))
        trainer.learner.supervised([sample for t in shown if t.failure is None for sample in samples_of(t)])
    await collector.close()


def learn(urls, updates, warm_steps=40):
    model = VLMWrapper("uirl/tiny-lm")
    trainer = Trainer(model, RejectionSampling(reward_threshold=0.5), BATCH, learning_rate=1e-3)
    asyncio.run(warm_start(trainer, urls, warm_steps))
    trajectories = queue.Queue(maxsize=BATCH)
    runner = MultiActorRunner(
        num_actors=ACTORS,
        env_urls=urls,
        model=model,
        trajectory_queue=trajectories,
        task_prompt=GOAL,
        action_format="text",
        options=MultiActorOptions(max_steps=2, max_tokens=4, images=trainer.images),
        environment="remote",
    )
    runner.publish(trainer.learner)
    curve = []
    with runner:
        for update in range(updates):
            played = [trajectories.get(timeout=300) for _ in range(BATCH)]
            metrics = trainer.train_step(played)
            runner.publish(trainer.learner)
            usable = [t for t in played if t.failure is None]
            curve.append(sum(t.total_reward() for t in usable) / len(usable))
            print(f"update {update}: success {curve[-1]:.3f}, {metrics['staleness']:.1f} versions old", flush=True)
        stats = runner.stats()
    print(
        f"{stats['episodes']} episodes, {stats['steps_per_second']:.0f} steps/s, failures {stats['failures'] or 'none'}"
    )
    for url, row in stats["urls"].items():
        print(f"  {url}: {row['episodes']} episodes, {row['steps_per_second']:.0f} steps/s")
    return curve


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        learn(sys.argv[1:] or stack.enter_context(servers(2)), updates=40)

"""What an update and a prefill take, counted on real tensors: what a plan is compared with.

One step of the learner, one prefill and one draw of the engine on made-up samples of a plan's largest micro-batch, with
a ledger beside them that knows which bytes of tensors are alive, and what for. A storage counts from the operation that
made it until Python and autograd have let go of it. What an operation takes inside itself and gives back (workspaces of
kernels) is not seen, nor is what Python and NumPy hold.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from uirl.config import ConfigStore
from uirl.images import ImageStore, Screenshot, screenshot
from uirl.inference.embedded.sampling import draw, sampling_log_probs
from uirl.inference.models.loading import LoadedModel, hidden_states, pad_sequences, project
from uirl.learner import Policy
from uirl.learner.batch import Batch, MicroBatchRoom, SampleBatches
from uirl.learner.optimizer import Optimizer
from uirl.learner.settings import LearnerSettings
from uirl.learner.steps import Objective, UpdateSteps, UpdateTensors
from uirl.metrics import Metrics
from uirl.training.plan import Workload
from uirl.types import Sample

SHORT = 8
"""Sampled tokens of the sample that leaves gradients and states of the optimiser before the largest one comes."""


class Ledger(TorchDispatchMode):
    """Counts live bytes while it is entered. `vocabulary`: tensors with so many columns are logits; 0: none are."""

    def __init__(self, vocabulary: int = 0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self._name = "activations"
        self._names: dict[int, str] = {}
        self.live: Counter[str] = Counter()
        """Bytes of each part that are alive now."""
        self.peak: Counter[str] = Counter()
        """The parts when their sum was largest since `restart`."""
        self._total = 0
        self._most = 0

    @property
    def total(self) -> int:
        """Bytes that are alive now."""
        return self._total

    @property
    def most(self) -> int:
        """The largest sum since `restart`."""
        return self._most

    def restart(self) -> None:
        """Forget the peak: the largest sum is the one of now."""
        self._most, self.peak = self._total, Counter(self.live)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Return a context in which what is made counts as `name`."""
        before, self._name = self._name, name
        try:
            yield
        finally:
            self._name = before

    def count(self, tensors: Iterable[Tensor], name: str) -> None:
        """Count tensors that were made elsewhere as `name`; those that were counted before become `name`."""
        for tensor in tensors:
            self._note(tensor, name)
            key = _key(tensor)
            size = tensor.untyped_storage().nbytes()
            self.live[self._names[key]] -= size
            self.live[name] += size
            self._names[key] = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf, self._name)
        return out

    def _note(self, tensor: Tensor, name: str) -> None:
        key = _key(tensor)
        if key in self._names:
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if self.vocabulary and name == "activations" and tensor.shape[-1:] == (self.vocabulary,):
            name = "logits"
        self._names[key] = name
        self.live[name] += size
        self._total += size
        weakref.finalize(storage, self._forget, key, size).atexit = False
        if self._total > self._most:
            self.restart()

    def _forget(self, key: int, size: int) -> None:
        name = self._names.pop(key, None)
        if name is not None:
            self.live[name] -= size
            self._total -= size


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Rehearsal:
    """A policy, its optimiser, and samples of a workload. Make it and use it while `ledger` is entered."""

    def __init__(self, config: ConfigStore, policy: Policy, work: Workload, ledger: Ledger) -> None:
        config = config.model_copy(deep=True)
        # what a guard would do after the steps depends on numbers; its copy of the weights is added by the plan
        config.algorithm.max_update_kl = config.algorithm.target_kl = None
        self.policy, self.loaded, self.work, self.ledger = policy, policy.loaded, work, ledger
        self.settings = LearnerSettings.of(config)
        self.images = ImageStore()
        self._plain = _plain_token(self.loaded)
        self._count_weights()
        if self.settings.needs_reference and policy.lora_config is None:
            with ledger.part("reference"):
                policy.freeze_reference()
        with ledger.part("optimizer"):
            head = [] if policy.value_head is None else list(policy.value_head.named_parameters())
            trained = policy.named_trainable()
            self.optimizer = Optimizer(trained, head, self.settings.optimizer("update"))
        for name, parameter in [*trained, *head]:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._count_gradient(name))

    def update(self) -> Counter[str]:
        """Take two steps, the second on the largest micro-batch; return the bytes of each part when that one held
        most."""
        self._step([self._short()])
        self.ledger.count(self.optimizer.state().values(), "optimizer")
        self.ledger.restart()
        work = self.work
        largest = [self._sample(work.width, work.replies, work.pictures_each, row) for row in range(work.rows)]
        self._step(largest if work.alone else [self._short(), *largest])
        return Counter(self.ledger.peak)

    @torch.no_grad()
    def prefill(self) -> Counter[str]:
        """Read the largest prompts of a batch of the engine and draw a token for all that run; return the bytes of each
        part when they held most. The attention cache is not among them."""
        work = self.work
        self.ledger.restart()
        samples = [self._sample(work.longest, 1, work.pictures, row) for row in range(work.prefill_rows)]
        shown = [[self.images.get(hash) for hash in sample.images] for sample in samples]
        ids, positions = pad_sequences(self.loaded, [sample.token_ids for sample in samples], shown)
        hidden = hidden_states(self.loaded, ids, positions, [image for row in shown for image in row])
        last = hidden[:, -1][:1].expand(work.episodes, -1)
        del hidden
        logits = project(self.loaded, last)
        log_probs = sampling_log_probs(logits, torch.ones(work.episodes, dtype=logits.dtype), None, None)
        draw(log_probs, torch.zeros(work.episodes, dtype=torch.bool), torch.zeros(work.episodes))
        return Counter(self.ledger.peak)

    def _step(self, samples: Sequence[Sample]) -> None:
        largest = max(len(sample.token_ids) for sample in samples)
        together = len([sample for sample in samples if len(sample.token_ids) == largest])
        room = MicroBatchRoom(largest * together)
        batches = _ShortestFirst(self.loaded, samples, self.images, room, share_prompts=False, padding_free=False)
        numbers = [torch.zeros(sum(sample.response_mask)) for sample in samples]
        tensors = UpdateTensors(
            advantages=numbers,
            returns=numbers,
            rollout_log_probs=numbers,
            old_log_probs=numbers,
            ref_log_probs=numbers if self.settings.needs_reference else None,
            values=None if self.policy.value_head is None else numbers,
        )
        settings = self.settings
        objective = Objective.of(
            settings, tensors, 1, entropy_coef=settings.entropy_coef, kl_loss_coef=settings.kl_loss_coef
        )
        # of another version than the samples: nobody compares their log-probs with the learner's
        steps = UpdateSteps(self.policy, self.optimizer, self.settings, 1, Metrics())
        steps.take(batches, objective, [list(range(len(samples)))], 1.0)

    def _short(self) -> Sample:
        pictures = min(1, self.work.pictures)
        return self._sample(pictures * self.work.picture_tokens + 2 * SHORT, SHORT, pictures, -1)

    def _sample(self, width: int, replies: int, pictures: int, row: int) -> Sample:
        shown = [self.images.put(made_up_picture(self.work.picture, 1 + row * pictures + i)) for i in range(pictures)]
        vision = self.loaded.vision
        ids = [id for image in shown for id in vision.describe([image])[0].expansion.ids] if vision is not None else []
        ids += [self._plain] * (width - len(ids))
        mask = (False,) * (width - replies) + (True,) * replies
        return Sample(
            token_ids=tuple(int(id) for id in ids),
            response_mask=mask,
            rollout_log_probs=(0.0,) * width,
            rewards=(0.0,) * width,
            turn_ids=tuple(0 if sampled else -1 for sampled in mask),
            images=tuple(image.hash for image in shown),
            trajectory_id=f"made-up-{row}",
        )

    def _count_weights(self) -> None:
        model = self.policy.model
        adapters = {name: p for name, p in model.named_parameters() if ".lora_" in name}
        base = [p for name, p in model.named_parameters() if name not in adapters]
        self.ledger.count([*base, *model.buffers()], "weights")
        self.ledger.count(adapters.values(), "adapters")
        if self.policy.value_head is not None:
            self.ledger.count(self.policy.value_head.parameters(), "value head")

    def _count_gradient(self, name: str) -> None:
        gradient = self.optimizer.gradient(name)
        if gradient is not None:
            self.ledger.count([gradient], "gradients")


class _ShortestFirst(SampleBatches):
    """Micro-batches with the largest at the end."""

    def of(self, chosen: Sequence[int]) -> Iterator[tuple[Batch, list[int]]]:
        yield from reversed(list(super().of(chosen)))


def made_up_picture(size: tuple[int, int], number: int) -> Screenshot:
    """Return a picture of one colour, another one for every number."""
    colour = tuple(number >> shift & 255 for shift in (0, 8, 16))
    return screenshot(Image.new("RGB", size, colour))


def _plain_token(loaded: LoadedModel) -> int:
    never = {*loaded.banned_ids, *loaded.end_ids}
    return next(id for id in range(len(loaded.tokenizer)) if id not in never)

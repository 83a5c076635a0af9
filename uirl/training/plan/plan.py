"""What a run takes of its GPU, or of the machine without one: the sum that `uirl plan` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from uirl.config import ConfigStore
from uirl.errors import ContractError
from uirl.inference.embedded.packed_weights import packable
from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.precision import DTYPES, dtype_of
from uirl.learner import Policy
from uirl.learner.policy import tokens_projected
from uirl.training.plan.depth import linear_in_layers, shallow
from uirl.training.plan.fake import FakeLedger, shape_of_picture, show_shapes, without_memory
from uirl.training.plan.moment import FREE, GIB, Moment
from uirl.training.plan.rehearsal import SHORT, Rehearsal, made_up_picture
from uirl.training.plan.shape import attention_heads
from uirl.training.plan.states import copies_beside, policy_of_shapes, states_of, weights_of
from uirl.training.plan.workload import CACHE_ROWS, PICTURE, Workload, workload_of

PROCESS = 0.5 * GIB
"""The context of a GPU, or Python with its libraries. An allowance, not measured."""
ASLEEP = 1.0 * GIB
"""What an engine that sleeps keeps of a GPU: the context of its process, libraries, graphs. An allowance, not
measured."""
CHUNKS = 3
"""Chunks of logits that are traced."""
UPDATE, PLAYING = "updating the policy", "playing episodes"
CACHE = "attention cache"
PACKED = "packed weights of decoding"


@dataclass(frozen=True, slots=True)
class Plan:
    """The moments of a run at which it takes most."""

    model: str
    parameters: int
    trained: int
    workload: Workload
    moments: tuple[Moment, ...]

    @property
    def problems(self) -> list[str]:
        """Return the reasons why the run does not fit; empty: it does."""
        return [moment.problem for moment in self.moments if not moment.fits]

    @property
    def excess(self) -> float:
        """Return the bytes above the limit, of all moments together; 0: it fits."""
        return sum(max(0.0, moment.total - moment.limit) for moment in self.moments if moment.limit is not None)

    def moment(self, name: str) -> Moment:
        """Return the moment of that name."""
        return next(moment for moment in self.moments if moment.name == name)

    def fits(self, name: str) -> bool:
        """Return whether the moment of that name fits."""
        return self.moment(name).fits

    def __str__(self) -> str:
        head = f"{self.model}: {self.parameters / 1e6:.4g} M parameters, {self.trained / 1e6:.4g} M of them are trained"
        return "\n".join([head, str(self.workload), *map(str, self.moments)])


@dataclass(slots=True)
class Traces:
    """What plans have in common: policies of the same shapes, and updates of configs that differ in `rollout.parallel`
    alone."""

    policies: dict[str, Policy] = field(default_factory=dict)
    updates: dict[str, Counter[str]] = field(default_factory=dict)

    def policy(self, config: ConfigStore) -> Policy:
        """Return the policy of a run on the meta device, which stays as it is."""
        training = config.training
        key = f"{training.adv_estimator}, {training.seed}, {config.model.model_dump_json()}"
        if key not in self.policies:
            self.policies[key] = policy_of_shapes(config)
        return self.policies[key]

    def update(self, config: ConfigStore, trace: Callable[[], Counter[str]]) -> Counter[str]:
        """Return what `trace` says of the update of a run."""
        same = config.model_copy(deep=True)
        same.rollout.parallel = None
        key = same.model_dump_json()
        if key not in self.updates:
            self.updates[key] = trace()
        return Counter(self.updates[key])


def plan_of(
    config: ConfigStore,
    *,
    limit: float | None,
    gpu: bool = True,
    picture: tuple[int, int] = PICTURE,
    tokens: int | None = None,
    traces: Traces | None = None,
) -> Plan:
    """Return the plan of a run. `limit`: bytes of a GPU or, without `gpu`, of the machine; None: unknown. `picture`,
    `tokens`: see `workload_of`. `traces`: of plans that a caller makes with these sizes, one after the other.

    The learner's own step runs on tensors without memory, and what they would take is counted. Raises CheckpointError
    where the config or the tokenizer of the model cannot be read, ContractError for a model that cannot be traced.
    """
    config = config.model_copy(deep=True)
    config.model.dtype = dtype_of(config.model, gpu=gpu)  # type: ignore[assignment]
    config.model.device = "cpu"
    traces = traces or Traces()
    policy = traces.policy(config)
    loaded = policy.loaded
    work = workload_of(config, loaded, picture=picture, tokens=tokens)
    if gpu:
        loaded.features.kept = False  # what was computed once waits in the memory of the host
    few = _with_few_replies(work, policy)
    updating = traces.update(
        config, lambda: linear_in_layers(policy, lambda short: _trace(config, short, few, Rehearsal.update))
    )
    # the states before the tokens that are left out, and their gradients
    left_out = work.rows * (work.replies - few.replies) * loaded.text_config.hidden_size
    updating["activations"] += 2 * left_out * loaded.dtype.itemsize
    states = states_of(policy, config)
    if config.training.optimizer == "adamw_8bit":
        updating["optimizer"] = int(states["optimizer"])  # the rehearsal steps with float32 moments
    here = config.inference.backend == "transformers" and not config.actors.engines
    playing = _trace(config, shallow(policy), work, Rehearsal.prefill) if here else Counter()
    guarded = "weights before the update"
    before = {guarded: states[guarded]}
    playing |= {name: updating[name] for name in ("optimizer", "reference")}
    beside = {
        **weights_of(policy, config),
        **copies_beside(policy, config),
        "contexts, libraries": PROCESS,
    }
    awake = {"engine": _engine(config, limit)}
    asleep = {"engine, asleep": ASLEEP} if gpu and config.engine_sleep_level else awake
    if not gpu:
        beside["pictures kept"] = _pictures_kept(config, loaded, work)
    where, may = "GPU" if gpu else "host", None if limit is None else (1 - FREE) * limit
    cache = {CACHE: _cache(config, policy, work) if here else 0.0}
    packed = float(sum(linear.weight.nbytes for linear in packable(policy.model))) if here and not gpu else 0.0
    free = None if may is None else may - sum({**playing, **cache, **beside, **awake}.values())
    if free is None or free > 2 * packed:  # else the engine does without
        cache[PACKED] = packed
    if config.actors.run_ahead:
        before |= cache
    moments = (
        Moment(where, UPDATE, _ordered(updating | before | beside | asleep), may),
        Moment(where, PLAYING, _ordered(playing | cache | beside | awake), may),
    )
    parameters = list(policy.model.parameters())
    trained = sum(p.numel() for _, p in policy.named_trainable())
    return Plan(loaded.name, sum(p.numel() for p in parameters), trained, work, moments)


def _trace(
    config: ConfigStore, policy: Policy, work: Workload, act: Callable[[Rehearsal], Counter[str]]
) -> Counter[str]:
    """Return the parts of what `act` does with `policy`, which becomes one of fake tensors."""
    loaded = policy.loaded
    ledger = FakeLedger(loaded.model.get_output_embeddings().weight.shape[0])  # type: ignore[operator]
    if loaded.vision is not None and work.pictures:
        show_shapes(loaded.vision, made_up_picture(work.picture, 0), ledger)
    try:
        with ledger.running():
            for module in (policy.model, policy.value_head):
                if module is not None:
                    without_memory(module)
            return act(Rehearsal(config, policy, work, ledger, shape_of_picture))
    except RuntimeError as error:  # of PyTorch, where an operation knows no fake tensors
        reason = str(error).partition("\n")[0]
        raise ContractError(
            f"{loaded.name} cannot be planned: its forward in {config.model.dtype} uses what needs real numbers "
            f"({type(error).__name__}: {reason}); try another model.dtype or model.attn_implementation"
        ) from error


def _engine(config: ConfigStore, limit: float | None) -> float:
    """Return the bytes that an engine of its own takes of the GPU."""
    inference = config.inference
    if inference.backend not in ("vllm", "sglang") or inference.server_url is not None or limit is None:
        return 0.0
    name, usual = ("gpu_memory_utilization", 0.45) if inference.backend == "vllm" else ("mem_fraction_static", 0.9)
    share = inference.engine_options.get(name, usual)
    return float(share) * limit if isinstance(share, (int, float)) else 0.0


def _with_few_replies(work: Workload, policy: Policy) -> Workload:
    """Return `work` with as many sampled tokens as fill the logits that are kept and a few chunks: of more, one chunk
    at a time is there, and each costs time to trace."""
    kept, at_once = tokens_projected(policy.loaded)
    enough = kept + CHUNKS * at_once
    return replace(work, replies=min(work.replies, max(SHORT, -(-enough // work.rows))))


def _pictures_kept(config: ConfigStore, loaded: LoadedModel, work: Workload) -> float:
    """Return the bytes of encoded pictures that wait in main memory for their next use."""
    if loaded.vision is None or not work.pictures:
        return 0.0
    (one,) = loaded.vision.describe([made_up_picture(work.picture, 0)])
    return float(
        min(config.model.picture_cache_gib * 2**30, config.training.batch_size * config.turn_limit * one.bytes)
    )


def _cache(config: ConfigStore, policy: Policy, work: Workload) -> float:
    """Return the bytes of keys and values of all episodes under way, each of the longest."""
    text = policy.loaded.text_config
    heads, kv_heads = attention_heads(policy.loaded.config)
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    numbers = 2 * text.num_hidden_layers * kv_heads * head
    # rows of the cache grow by an eighth
    rows, length = -(-work.episodes // CACHE_ROWS) * CACHE_ROWS, -(-work.longest * 9 // 8 // 64) * 64
    whole = float(rows * length * numbers * DTYPES[dtype_of(config.model)].itemsize)
    most = config.inference.kv_cache_gib  # beyond it requests wait
    return whole if most is None else min(whole, most * GIB)


ORDER = (
    "weights",
    "adapters",
    "value head",
    "reference",
    "optimizer",
    "gradients",
    "activations",
    "logits",
    "pictures",
)


def _ordered(parts: Mapping[str, Any]) -> dict[str, float]:
    names = [*ORDER, *(name for name in parts if name not in ORDER)]
    return {name: float(parts.get(name, 0)) for name in names if parts.get(name, 0) > 0}

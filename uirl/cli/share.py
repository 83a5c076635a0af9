"""What a hub shows of an export, its card, and the way there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uirl.errors import UirlError

if TYPE_CHECKING:
    from uirl.config import ModelConfig

_LINK = "[uirl](https://pypi.org/project/uirl)"


def model_card(model: ModelConfig, task: str, summary: Mapping[str, Any] | None, checkpoint: str, kind: str) -> str:
    """Return the README.md of an exported policy. `task`: the environment; `summary`: of the run (None: it has not
    ended), whose figures are those of the last checkpoint and of no other. `kind`: 'hf' or 'peft'."""
    from huggingface_hub import EvalResult, ModelCardData

    base = model.source if _of_hub(model) and not model.built_in else None
    last = summary if summary is not None and checkpoint == f"step_{summary['steps']:06d}" else None
    # elsewhere a bare number is read as held out
    success = last["success_after"] if last is not None and _held_out(last) == "yes" else None
    result = EvalResult("reinforcement-learning", "environment", task, "success rate", success)
    data = ModelCardData(
        base_model=base,
        library_name="peft" if kind == "peft" else "transformers",
        tags=["uirl", "reinforcement-learning"],
        model_name=task,
        eval_results=None if success is None else [result],
    )
    return f"""---
{data.to_yaml()}
---

# A policy for `{task}`

Made with {_LINK} by reinforcement learning, from {_named(model)}. The licence is that of
the model it began from.

{_figures(last)}

It reads and writes as this run taught it: the prompt of the environment, its actions, `{checkpoint}`.
"""


def _figures(summary: Mapping[str, Any] | None) -> str:
    from uirl.training.record.progress import counted, percent

    if summary is None:
        return "How it does on instances it was not trained on was not measured for this checkpoint."
    before, after = (summary.get(f"success_{when}_interval") for when in ("before", "after"))
    rows = {
        "success": percent(summary["success_after"], after),
        "measured on": f"{counted(**summary['evaluated'])}, {summary['judged_after']} judged",
        "held out from training": _held_out(summary),
        "before reinforcement learning": percent(summary["success_before"], before),
        **{f"control: {name}": f"{value:.3f}" for name, value in summary["controls"].items() if value is not None},
        "algorithm": summary["algorithm"],
        "trained on": f"{summary['ledger']['trained']} episodes in {summary['steps']} updates",
        "ended because": summary["stopped_because"],
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _held_out(summary: Mapping[str, Any]) -> str:
    said = (summary["held_out"] or {}).get("held_out")
    return "not known" if said is None else "yes" if said else "NO"


def _of_hub(model: ModelConfig) -> bool:
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model.source) is not None and not os.path.exists(model.source)


def _named(model: ModelConfig) -> str:
    """Return what a policy began from, without the folders of whoever exports it."""
    return f"`{model.source}`" if _of_hub(model) else f"the folder `{Path(model.source).name}`, which is on no hub"


def data_card(model: ModelConfig, task: str, file: Path, examples: int) -> str:
    """Return the README.md of a data set of `examples` solved episodes of `task` (or replies of them) in `file`."""
    from huggingface_hub import DatasetCardData

    data = DatasetCardData(
        tags=["uirl", "trajectories", "agents"], configs=[{"config_name": "default", "data_files": file.name}]
    )
    return f"""---
{data.to_yaml()}
---

# Solved episodes of `{task}`

{examples} example{"s" * (examples != 1)} of what a policy that began from {_named(model)} did where its run,
made with {_LINK}, judged the task solved. Replies are the policy's own words; whether they are right was decided by the
run's reward and success, not by people. Held-out episodes are not among them. Pictures show what the policy was shown.

| field | |
|---|---|
| `messages`, or `prompt` and `completion` | the conversation, as chat messages |
| `id`, `task`, `reward` | of the episode in its run |
| `images` | files of its pictures, in order, where there are any |
| `tools` | schemas of the tools, as JSON, where there are any |
"""


class Hub:
    """A repository on the hub (`HF_ENDPOINT`), made if it is not there. Nothing is published without being asked to:
    a new one is private, and a public one is refused unless `public`."""

    def __init__(self, name: str, kind: str, *, public: bool = False) -> None:
        """`name`: 'owner/name' or 'name'; `kind`: 'model' or 'dataset'. Raises UirlError."""
        from huggingface_hub import HfApi

        self._api, self.name, self._kind = HfApi(library_name="uirl"), name, kind
        with self._telling():
            made = self._api.create_repo(name, repo_type=kind, private=not public, exist_ok=True)
            self.name = made.repo_id
            info = self._api.repo_info(self.name, repo_type=kind)
        if not info.private and not public:
            raise UirlError(f"{made} is public: everybody could read what is pushed there. If they may: --public")

    def push(self, files: Mapping[str, Path], message: str) -> str:
        """Send `files` (name there -> file) in one commit and return the address. Raises UirlError."""
        from huggingface_hub import CommitOperationAdd

        operations = [CommitOperationAdd(name, str(path)) for name, path in files.items()]
        with self._telling():
            commit = self._api.create_commit(self.name, operations, commit_message=message, repo_type=self._kind)
        return str(commit.repo_url)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        from huggingface_hub.errors import HTTPError

        try:
            yield
        except (HTTPError, OSError, ValueError) as error:
            raise UirlError(
                f"cannot push to {self.name!r} at {self._api.endpoint}: {type(error).__name__}: {error}\nIs somebody "
                "logged in who may write there (`hf auth login`, or HF_TOKEN), and is the name OWNER/NAME?"
            ) from error

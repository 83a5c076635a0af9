"""The files that start a run on Slurm and KubeRay: as they are rendered, whole, valid, and with keys that exist."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.render import Plan, kuberay_yaml, parse, ray_job, slurm_script
from uirl import ConfigStore

ROOT = Path(__file__).parents[2]
SCHEMA = yaml.safe_load((Path(__file__).parent / "rayjob_schema.yaml").read_text())
PLANS = [
    Plan(),
    Plan(name="screens-7", config="my runs/a config.yaml", runs="/data/my runs", gpus=0, nodes=1, browsers=3),
    Plan(
        overrides=("training.seed=1", "environment.options={level: 2, names: ['a b', \"c\"]}", "logging.runs_dir=$HOME")
    ),
]


def commands(text: str) -> list[str]:
    """The words of the command `uirl train` in a script or an entrypoint."""
    words = shlex.split(text[text.index("uirl train") :])
    return words


@pytest.mark.parametrize(("name", "render"), [("slurm.sh", slurm_script), ("kuberay.yaml", kuberay_yaml)])
def test_the_files_in_the_folder_are_what_the_program_writes(name: str, render: Any) -> None:
    assert (ROOT / "deploy" / name).read_text() == render(Plan()), f"run `python deploy/render.py {name[:-3]} > ...`"


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_the_keys_are_those_of_the_config(plan: Plan) -> None:
    config = ConfigStore().override(plan.keys)
    assert config.ray.use_ray
    assert config.ray.address == "auto"
    assert config.ray.num_actors == plan.nodes * plan.browsers
    assert config.ray.actor_resources == {"browser": 1}
    assert 0 < config.ray.actor_cpus * plan.browsers <= plan.cpus


SRUN = """#!/bin/bash
# one node: no options of srun, and the command as it is
while [[ "$1" == --* ]]; do shift; done
printf '%s\\0' "$@" >> "$SEEN"
printf '\\n' >> "$SEEN"
[ "$1" = ray ] || exit 0
{ stat -c %a "$RAY_AUTH_TOKEN_PATH"; cat "$RAY_AUTH_TOKEN_PATH"; echo; env; } > "$SEEN.env"
"""


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_the_script_for_slurm_starts_ray_and_the_run(plan: Plan, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "srun").write_text(SRUN)
    (tools / "scontrol").write_text("#!/bin/sh\nprintf 'node-a\\nnode-b\\n'\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    runs = tmp_path / "my runs"
    script = tmp_path / "job.sh"
    script.write_text(slurm_script(Plan(**{**plan.__dict__, "runs": str(runs)})))
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen"), "HOME": "/nowhere"}
    environment |= {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "node-[a-b]"}
    subprocess.run(["bash", script], env=environment, check=True)
    made, started = (tmp_path / "seen").read_bytes().decode().splitlines()
    assert made.split("\0")[:-1] == ["mkdir", "-p", "/tmp/ray-12345"]
    words = started.split("\0")[:-1]
    command = words[words.index("--") + 1 :]
    assert words[: words.index("--")] == [
        *("ray", "symmetric-run", "--address", "node-a:22345", "--min-nodes", str(plan.nodes)),
        *(f"--num-cpus={plan.cpus}", f'--resources={{"browser": {plan.browsers}}}'),
    ]
    assert command == [
        *("uirl", "train", plan.config, f"logging.runs_dir={runs}", f"logging.run_name={plan.name}-12345"),
        *plan.keys,
    ]
    mode, token, *variables = (tmp_path / "seen.env").read_text().splitlines()
    assert mode == "600"
    assert len(token) == 64
    assert "RAY_AUTH_MODE=token" in variables
    assert list(runs.iterdir()) == []  # the token went with the job
    (runs / f"{plan.name}-12345").mkdir()
    subprocess.run(["bash", script], env=environment, check=True)
    again = (tmp_path / "seen").read_bytes().decode().splitlines()[-1].split("\0")
    assert again[again.index("train") + 2] == "--resume"
    assert ("--gpus-per-node" in script.read_text()) == bool(plan.gpus)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_the_job_for_kuberay_fits_its_schema(plan: Plan, tmp_path: Path) -> None:
    job, policy = yaml.safe_load_all(kuberay_yaml(plan))
    assert [job, policy] == ray_job(plan)
    jsonschema.Draft202012Validator(SCHEMA).validate(job)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    cluster = job["spec"]["rayClusterSpec"]
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    entrypoint = job["spec"]["entrypoint"].replace(plan.runs, str(tmp_path)).replace("uirl train", "printf '%s\\n'", 1)
    run = [plan.config, f"logging.runs_dir={tmp_path}", f"logging.run_name={plan.name}", *plan.keys]
    assert subprocess.check_output(["sh", "-c", entrypoint], text=True).splitlines() == run
    (tmp_path / plan.name).mkdir()
    assert subprocess.check_output(["sh", "-c", entrypoint], text=True).splitlines() == [*run, "--resume"]
    # what a shell makes of the value is what `ray start --resources` reads
    resources = {name: json.loads(shlex.split(g["rayStartParams"]["resources"])[0]) for name, g in groups.items()}
    assert resources == {"learner": {"learner": 1}, "browsers": {"browser": plan.browsers}}
    assert json.loads(job["spec"]["entrypointResources"]) == {"learner": 1}
    assert groups["browsers"]["replicas"] == plan.nodes
    pods = [cluster["headGroupSpec"]["template"], *(group["template"] for group in groups.values())]
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        assert {v["name"] for v in pod["spec"]["volumes"]} == {m["name"] for m in container["volumeMounts"]}
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    gpus = [pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu") for pod in pods]
    assert gpus == [None, str(plan.gpus) if plan.gpus else None, None]


def test_a_key_that_kuberay_does_not_know_is_found() -> None:
    job, _ = ray_job(Plan())
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="'replica' was unexpected"):
        jsonschema.validate(job, SCHEMA)


def test_the_command_line_fills_the_plan() -> None:
    assert parse(["slurm"]) == ("slurm", Plan())
    given = ["kuberay", "--name", "x", "--browsers", "2", "--learner-memory", "1Gi", "training.seed=1", "--gpus", "0"]
    assert parse(given) == (
        "kuberay", Plan(name="x", browsers=2, learner_memory="1Gi", gpus=0, overrides=("training.seed=1",))
    )  # fmt: skip

"""Write the files that start a run on a cluster: `python deploy/render.py slurm`, `python deploy/render.py kuberay`.

`deploy/slurm.sh` and `deploy/kuberay.yaml` are what it writes without options; docs/ray.md explains them.
"""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import jinja2
import yaml

HERE = Path(__file__).parent
HEADER = """\
# One run of uirl as a RayJob, for KubeRay 1.5 or newer: a head that keeps the books, a group with GPUs for the learner
# and its engine, a group of CPUs for browsers. The image holds `uirl[ray,browser]` and Chromium, the claim the runs.
#   kubectl apply -f THIS_FILE
"""


@dataclass(frozen=True)
class Plan:
    """What a run gets of a cluster."""

    name: str = field(default="uirl", metadata={"help": "name of the job, and of the run"})
    config: str = field(default="configs/screen.yaml", metadata={"help": "the config, where the learner finds it"})
    runs: str = field(default="/runs", metadata={"help": "folder of the runs, on a disk that outlives the job"})
    nodes: int = field(default=4, metadata={"help": "machines with browsers; under Slurm the learner is on the first"})
    browsers: int = field(default=8, metadata={"help": "actors, each with a browser of its own, on each of them"})
    cpus: int = field(default=16, metadata={"help": "CPUs of each of them"})
    memory: str = field(default="64Gi", metadata={"help": "memory of a machine with browsers (KubeRay)"})
    gpus: int = field(default=1, metadata={"help": "GPUs of the learner's machine"})
    learner_cpus: int = field(default=8, metadata={"help": "CPUs of the learner's machine (KubeRay)"})
    learner_memory: str = field(default="64Gi", metadata={"help": "memory of the learner's machine (KubeRay)"})
    hours: int = field(default=24, metadata={"help": "after so long the job ends (Slurm)"})
    image: str = field(default="registry.example/uirl:latest", metadata={"help": "the image of all pods (KubeRay)"})
    claim: str = field(default="uirl-runs", metadata={"help": "PersistentVolumeClaim behind `runs` (KubeRay)"})
    ray_version: str = field(default="2.60.0", metadata={"help": "of Ray in the image (KubeRay)"})
    overrides: tuple[str, ...] = field(default=(), metadata={"help": "keys of the config, as `training.seed=1`"})

    @property
    def actors(self) -> int:
        """Actors on all machines."""
        return self.nodes * self.browsers

    @property
    def keys(self) -> list[str]:
        """What the command line says besides the config: where actors go, and the person's own keys last."""
        return [
            *("ray.use_ray=true", "ray.address=auto", f"ray.num_actors={self.actors}"),
            *("ray.actor_resources={browser: 1}", f"ray.actor_cpus={self.cpus / self.browsers / 2:g}"),
            *self.overrides,
        ]


def slurm_script(plan: Plan) -> str:
    """Return the script for `sbatch`."""
    template = jinja2.Template((HERE / "slurm.sh.jinja").read_text(encoding="utf-8"), undefined=jinja2.StrictUndefined)
    values = {f.name: getattr(plan, f.name) for f in fields(plan)}
    quoted = {"config": shlex.quote(plan.config), "runs": shlex.quote(plan.runs), "overrides": shlex.join(plan.keys)}
    return template.render(values | quoted) + "\n"


def ray_job(plan: Plan) -> list[dict[str, Any]]:
    """Return the objects for `kubectl apply`: the job, and who may reach its pods."""
    command = ["uirl", "train", plan.config, f"logging.runs_dir={plan.runs}", f"logging.run_name={plan.name}"]
    resume = f"$(test -d {shlex.quote(f'{plan.runs}/{plan.name}')} && echo --resume)"
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": plan.name},
        "spec": {
            # the learner is the job's own process; it runs where the resource `learner` is
            "entrypoint": f"{shlex.join([*command, *plan.keys])} {resume}",
            "entrypointNumCpus": 1,
            "entrypointResources": json.dumps({"learner": 1}),
            # a job that failed begins again, in a new cluster, and goes on from its last checkpoint
            "backoffLimit": 3,
            "submissionMode": "K8sJobMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "rayClusterSpec": {
                "rayVersion": plan.ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": _pod(plan, "ray-head", cpus=2, memory="8Gi"),
                },
                "workerGroupSpecs": [
                    _group("learner", 1, {"learner": 1}, _learner(plan)),
                    _group(
                        "browsers",
                        plan.nodes,
                        {"browser": plan.browsers},
                        _pod(plan, "ray-worker", cpus=plan.cpus, memory=plan.memory),
                    ),
                ],
            },
        },
    }
    return [job, _network_policy(plan)]


def kuberay_yaml(plan: Plan) -> str:
    """Return the file for `kubectl apply`."""
    return HEADER + yaml.safe_dump_all(ray_job(plan), sort_keys=False, width=1000)


def _learner(plan: Plan) -> dict[str, Any]:
    return _pod(plan, "ray-worker", cpus=plan.learner_cpus, memory=plan.learner_memory, gpus=plan.gpus)


def _group(name: str, count: int, resources: dict[str, float], pod: dict[str, Any]) -> dict[str, Any]:
    # KubeRay pastes the value into a shell command, so that it needs quotes of its own
    params = {"resources": json.dumps(json.dumps(resources))}
    replicas = {"replicas": count, "minReplicas": count, "maxReplicas": count}
    return {"groupName": name, **replicas, "rayStartParams": params, "template": pod}


def _pod(plan: Plan, container: str, *, cpus: int, memory: str, gpus: int = 0) -> dict[str, Any]:
    amounts: dict[str, str] = {"cpu": str(cpus), "memory": memory}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    return {
        "metadata": {"labels": {"uirl-run": plan.name}},
        "spec": {
            # its first process then takes care of what dead browsers leave
            "shareProcessNamespace": True,
            "containers": [
                {
                    "name": container,
                    "image": plan.image,
                    "resources": {"requests": amounts, "limits": dict(amounts)},
                    "volumeMounts": [
                        {"name": "shm", "mountPath": "/dev/shm"},
                        {"name": "runs", "mountPath": plan.runs},
                    ],
                }
            ],
            "volumes": [
                # pictures and Ray's objects; a pod has 64 MB of it otherwise. It counts as memory of the container
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "runs", "persistentVolumeClaim": {"claimName": plan.claim}},
            ],
        },
    }


def _network_policy(plan: Plan) -> dict[str, Any]:
    """Only pods of the run reach each other; others reach the port to which jobs are submitted, which asks a token."""

    def mine() -> dict[str, Any]:
        return {"matchLabels": {"uirl-run": plan.name}}

    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{plan.name}-own-pods-only"},
        "spec": {
            "podSelector": mine(),
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": mine()}]}, {"ports": [{"port": 8265, "protocol": "TCP"}]}],
        },
    }


def parse(arguments: list[str] | None = None) -> tuple[str, Plan]:
    """Return what is to be written, and for which plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["slurm", "kuberay"])
    for f in fields(Plan):
        assert f.default is not MISSING
        if f.name == "overrides":
            parser.add_argument("overrides", nargs="*", help=f.metadata["help"])
        else:
            text = f"{f.metadata['help']} ({f.default})"
            parser.add_argument(f"--{f.name.replace('_', '-')}", type=type(f.default), default=f.default, help=text)
    options = vars(parser.parse_intermixed_args(arguments))
    kind = options.pop("kind")
    return kind, Plan(**options | {"overrides": tuple(options["overrides"])})


if __name__ == "__main__":
    wanted, the_plan = parse()
    print(slurm_script(the_plan) if wanted == "slurm" else kuberay_yaml(the_plan), end="")

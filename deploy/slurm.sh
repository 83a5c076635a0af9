#!/bin/bash
# One run of uirl on 4 nodes of a Slurm cluster: the learner and its engine on the first, browsers on all.
#   sbatch THIS_FILE
# Requeued, it goes on from its last checkpoint.
#SBATCH --job-name=uirl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail

# all nodes must see both: the config, and the folder that runs are written to
config=configs/screen.yaml
runs=/runs

# sockets and logs: on a disk of the node, under a short name
export RAY_TMPDIR="/tmp/ray-$SLURM_JOB_ID"
mkdir -p "$runs"
# whoever knows this token commands the cluster; without one, anybody in the network does
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH="$runs/.ray-token-$SLURM_JOB_ID"
(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH")
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

run=uirl-$SLURM_JOB_ID
resume=()
if [ -d "$runs/$run" ]; then resume=(--resume); fi

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))

srun --kill-on-bad-exit=1 mkdir -p "$RAY_TMPDIR"
srun --kill-on-bad-exit=1 ray symmetric-run --address "$head:$port" --min-nodes 4 \
  --num-cpus=16 --resources='{"browser": 8}' -- \
  uirl train "$config" "${resume[@]}" "logging.runs_dir=$runs" "logging.run_name=$run" \
  ray.use_ray=true ray.address=auto ray.num_actors=32 'ray.actor_resources={browser: 1}' ray.actor_cpus=1

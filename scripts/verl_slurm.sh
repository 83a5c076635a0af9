#!/bin/bash
# A run under verl on an allocation of Slurm's: one Ray cluster over its nodes, the run on the first of them.
#
#   sbatch --nodes=4 --time=24:00:00 scripts/verl_slurm.sh config.yaml [key=value ...]
#
# Expects the repository, the environment (UIRL_BIN, default .venv/bin) and the model on a file system all nodes share.
# Who can reach Ray's port and is not asked for a token runs programs in your name: the cluster has a token of its own.
#SBATCH --job-name=uirl-verl
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
set -euo pipefail

bin=${UIRL_BIN:-$PWD/.venv/bin}
port=${RAY_PORT:-6379}
gpus=${SLURM_GPUS_ON_NODE:-8}
config=${1:?usage: sbatch scripts/verl_slurm.sh config.yaml [key=value ...]}
shift
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address | awk '{print $1}')

# srun hands both variables on; the file is on the shared file system and can be read by its owner alone
RAY_AUTH_TOKEN_PATH=$(mktemp "$PWD/.ray-token.XXXXXX")
export RAY_AUTH_TOKEN_PATH RAY_AUTH_MODE=token
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
"$bin/python" -c 'import secrets; print(secrets.token_hex(32), end="")' > "$RAY_AUTH_TOKEN_PATH"

# --block keeps Ray in the step, so that it ends with the job; the dashboard listens on the first node's loopback
srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" --overlap \
  "$bin/ray" start --head --node-ip-address="$head" --port="$port" --dashboard-host=127.0.0.1 --num-gpus="$gpus" --block &

counted="import ray; ray.init(address='$head:$port'); print(int(ray.cluster_resources().get('GPU', 0)))"
count() {
  "$bin/python" -c "$counted" 2>/dev/null | tail -1 || true
}
for _ in $(seq 60); do
  found=$(count)
  [ "${found:-0}" -ge "$gpus" ] && break
  sleep 5
done
# a Ray that knows of no tokens (before 2.52) starts as well, and lets everybody in
if [ -n "$(env -u RAY_AUTH_MODE -u RAY_AUTH_TOKEN_PATH HOME=/nonexistent "$bin/python" -c "$counted" 2>/dev/null || true)" ]; then
  echo "this Ray asks nobody for a token; install ray >= 2.52" >&2
  exit 1
fi
for node in "${nodes[@]:1}"; do
  srun --nodes=1 --ntasks=1 --nodelist="$node" --overlap \
    "$bin/ray" start --address="$head:$port" --num-gpus="$gpus" --block &
done

wanted=$((${#nodes[@]} * gpus))
for _ in $(seq 60); do
  found=$(count)
  [ "${found:-0}" -ge "$wanted" ] && break
  sleep 5
done
if [ "${found:-0}" -lt "$wanted" ]; then
  echo "Ray found ${found:-0} GPUs, expected $wanted on ${#nodes[@]} nodes" >&2
  exit 1
fi

RAY_ADDRESS="$head:$port" "$bin/uirl" verl --config "$config" \
  "trainer.nnodes=${#nodes[@]}" "trainer.n_gpus_per_node=$gpus" "uirl.ray.address=$head:$port" "$@"

"""verl on a CPU: what must stand in the environment before it is imported, and one Ray for all tests.

Without verl installed only the tests that need none are collected; the others run with `make test-verl`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NEEDS_NONE = ("test_minibatches.py", "test_names.py", "test_settings.py")
NEEDS_VERL = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in NEEDS_NONE]
collect_ignore = NEEDS_VERL if importlib.util.find_spec("verl") is None else []

os.environ.update(
    {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "tests.integrations.verl.cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # its own 15 starves workers on a busy machine
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    if not collect_ignore
    else {}
)


@pytest.fixture(scope="session")
def one_ray() -> Iterator[None]:
    """Ray on this machine, for every run of the session. Its CPUs and GPUs are logical."""
    import ray

    ray.init(num_cpus=16, num_gpus=2, include_dashboard=False, object_store_memory=500_000_000)
    yield
    ray.shutdown()

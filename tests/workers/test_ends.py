"""What a process in a Ray cluster does when it is asked to end: what it had said that it does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.actors

ASKED = """
import os, signal, sys, threading
from uirl.workers.ray import Demand, RayCluster

heard = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: heard.set())
made = []
start = threading.Thread(target=lambda: made.append(RayCluster(None, Demand(1, {}))))  # as the trainer's loop
start.start()
start.join()
os.kill(os.getpid(), signal.SIGTERM)
heard.wait()
made[0].close()
sys.exit(7)
"""


def test_a_process_in_a_cluster_ends_as_it_chose_to() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=4 * PATIENCE)
    assert "SIGTERM received" not in done.stderr, done.stderr[-3000:]
    assert done.returncode == 7, done.stderr[-3000:]

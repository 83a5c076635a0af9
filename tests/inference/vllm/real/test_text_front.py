"""The convenience front over vLLM, as the documents show it: a script without a main guard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import tiny_model

pytestmark = pytest.mark.vllm

SCRIPT = """
import sys
from uirl import create_inference_engine

engine = create_inference_engine(
    model_path=sys.argv[1],
    backend="vllm",
    config={"dtype": "bfloat16", "tensor_parallel_size": 1, "max_model_len": 2048},
)
output = engine.generate(prompts=["Hello, how are you?", "x"], max_tokens=7, temperature=0.7, top_p=0.9, seed=1)
again = engine.generate(prompts=["Hello, how are you?", "x"], max_tokens=7, temperature=0.7, top_p=0.9, seed=1)
assert output.tokens.tolist() == again.tokens.tolist()
print("device", engine.loaded.device.type, "sequences", len(output.sequences), "tokens", output.tokens.shape[1])
"""


def test_a_script_that_forgets_to_close_ends_with_its_processes(tmp_path: Path) -> None:
    tiny_model("uirl/tiny-lm").save(tmp_path / "model")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # the pipe closes when the last process that holds it is gone, so this waits for those of vLLM too
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "model")], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "device meta sequences 2 tokens 7" in done.stdout

import json
import os
import subprocess
import sys

import pytest

SHARED_ON_EVERY_GPU = 99 * 1024
SHARED_ON_LARGE_GPUS = 163 * 1024  # A100; more on an H100


@pytest.mark.slow
def test_every_kernel_compiles_for_hopper_and_attention_uses_tensor_cores():
    """In a process of its own, for here Triton interprets; needs no GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compile_all", "h100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 31
    paged = [kernel for kernel in found if kernel["kernel"].split()[0] in ("prefill", "short", "decode")]
    assert all(kernel["shared"] <= SHARED_ON_LARGE_GPUS for kernel in paged)
    everywhere = [kernel for kernel in found if kernel not in paged or "small memory" in kernel["kernel"]]
    assert all(kernel["shared"] <= SHARED_ON_EVERY_GPU for kernel in everywhere)
    attention = [kernel for kernel in found if kernel["kernel"].split()[0] in ("prefill", "decode", "vision")]
    assert all(kernel["tensor_cores"] for kernel in attention if "fp32" not in kernel["kernel"])

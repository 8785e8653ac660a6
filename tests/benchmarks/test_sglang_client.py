"""Running SGLang's client from its wheel: only what it lacks is stood in for."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

CLIENT = """
import json, sys
from sglang.srt.utils.network import resolve_base_url, resolve_host_port
from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST
from sglang.benchmark.beside import VALUE
print(json.dumps([sys.argv[1:], VALUE, resolve_base_url(None, "h", 1), resolve_host_port(None, "h", 1)]))
"""


def test_the_client_runs_from_the_wheel_with_its_own_arguments(tmp_path: Path) -> None:
    wheel = tmp_path / "sglang-0.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("sglang/__init__.py", "raise ImportError('needs a GPU')")
        file.writestr("sglang/benchmark/__init__.py", "")
        file.writestr("sglang/benchmark/beside.py", "VALUE = 7")
        file.writestr("sglang/benchmark/serving.py", CLIENT)
    command = [sys.executable, "-m", "benchmarks.sglang_client", str(wheel), "--backend", "sglang-oai-chat"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == '[["--backend", "sglang-oai-chat"], 7, "http://h:1", "h:1"]', done.stderr

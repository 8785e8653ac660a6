"""What of the GPU check can be checked without a GPU."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks import gpu_check
from benchmarks.gpu import channel
from benchmarks.gpu.report import Report
from benchmarks.gpu.shapes import config_json
from benchmarks.roofline import STEPS, Step, serial_bound_s, step_operations, total
from gllm.core.model_shape import PRESETS, ModelShape
from rserve.runtime.arena_memory import ArenaShape, map_shared
from rserve.runtime.cuda_ipc import CudaIpcReceiver
from rserve.runtime.shared_file import create_shared
from rserve.sim.hardware import load_hardware
from tests.rserve.file_memory import FileMemory

SEVEN = PRESETS["qwen2.5-vl-7b"]
NO_GPU = not torch.cuda.is_available()


def little_shape() -> ModelShape:
    assert SEVEN.vision is not None
    text = dataclasses.replace(
        SEVEN.text, num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=151936,
        intermediate_size=96, mrope_section=(2, 3, 3),
    )  # fmt: skip
    vision = dataclasses.replace(
        SEVEN.vision, depth=2, hidden_size=64, num_heads=4, intermediate_size=96, out_hidden_size=64,
        fullatt_layers=(1,),
    )  # fmt: skip
    return dataclasses.replace(SEVEN, text=text, vision=vision)


def report(tmp_path=None) -> Report:
    return Report("here", tmp_path / "out.jsonl" if tmp_path else None, deadline=float("inf"))


@pytest.mark.skipif(not NO_GPU, reason="a GPU is here")
def test_without_a_gpu_it_says_so_in_one_line_and_fails(capsys):
    assert gpu_check.main([]) == 1
    said = capsys.readouterr()
    assert len(said.err.strip().splitlines()) == 1 and "no CUDA device" in said.err and not said.out


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_made_from_a_shape_is_read_as_that_shape(name):
    shape = PRESETS[name]
    generation = {"eos_token_id": list(shape.eos_token_ids)}
    assert ModelShape.from_config(json.loads(json.dumps(config_json(shape))), generation) == shape


def test_agreement_with_transformers_holds_and_notices_a_wrong_weight(monkeypatch):
    from benchmarks.gpu import engine

    good = report()
    engine.check_agreement(good, torch.device("cpu"), little_shape())
    assert [row.passed for row in good.rows] == [True]

    def spoiled(source, target):
        copied(source, target)
        target.layers[1].mlp.down.weight.zero_()

    copied = engine.copy_weights
    monkeypatch.setattr(engine, "copy_weights", spoiled)
    bad = report()
    engine.check_agreement(bad, torch.device("cpu"), little_shape())
    assert [row.passed for row in bad.rows] == [False] and bad.failed


def test_rows_become_result_lines_and_a_failed_section_does_not_end_the_run(tmp_path):
    made = report(tmp_path)

    def broken() -> None:
        raise RuntimeError("out of registers\nmore")

    gpu_check._guarded(made, "kernels", broken)
    made.goal("7b", "MFU", 0.4, 0.55)
    made.bounded("kernels", "error", float("nan"), 1.0)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert "out of registers" in lines[0]["note"] and lines[0]["source"] == "measured"
    assert [row.name for row in made.failed] == ["ran to its end", "error"]
    assert gpu_check._end(made, on_cpu=False) == 1


def test_a_section_after_the_deadline_is_shown_as_not_run():
    late = Report("here", None, deadline=0.0)
    gpu_check._guarded(late, "schemes", lambda: pytest.fail("it ran"))
    assert "NOT RUN" in late.table() and not late.failed


def test_operations_are_counted_from_the_shape():
    prefill = {o.name: o for o in step_operations(SEVEN.text, Step("p", ((0, 2048),)))}
    assert prefill["gate, up"].flops == pytest.approx(27 * 2 * 2048 * 3584 * 37888, rel=1e-3)
    assert prefill["attention"].flops == 4 * (2048 * 2049 // 2) * 28 * 3584
    decode = step_operations(SEVEN.text, Step("d", ((1023, 1),)))
    weights = SEVEN.text.num_layers * SEVEN.text.params_per_layer + SEVEN.text.embedding_params
    assert total("d", decode).bytes == pytest.approx(2 * weights, rel=0.02)


def test_faster_devices_have_lower_bounds():
    devices = [load_hardware(name) for name in ("a100-40g-pcie", "h100", "h200")]
    for step in STEPS:
        bounds = [serial_bound_s(step_operations(SEVEN.text, step), device) for device in devices]
        assert bounds == sorted(bounds, reverse=True)


BLOCKED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError("blocked: " + name, name=name)
sys.meta_path.insert(0, Refuse())
import benchmarks.gpu.engine, benchmarks.gpu.equality, benchmarks.gpu.kernels, benchmarks.gpu.shapes
"""


def test_what_runs_in_one_process_needs_torch_triton_and_transformers_only():
    program = BLOCKED.replace("{names}", repr(gpu_check.FOR_SERVERS))
    root = Path(gpu_check.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_without_a_servers_packages_its_sections_say_that_they_were_not_run(monkeypatch):
    monkeypatch.setattr(gpu_check, "find_spec", lambda name: None if name == "zmq" else object())
    found = report()
    gpu_check._channel(found, torch.device("cuda"))
    gpu_check._schemes(found)
    gpu_check._calibrate(found, torch.device("cuda"), Path("unused"))
    assert [row.note for row in found.rows] == ["NOT RUN: zmq not installed: pip install ."] * 3
    assert not found.failed


def test_batches_of_the_channel_check_are_told_apart(monkeypatch):
    """With host memory in the place of the GPU's, and a small arena."""
    shape = ArenaShape(8, 16, torch.bfloat16)
    monkeypatch.setattr(channel, "PER_BATCH", 2)
    fd = create_shared(shape.num_bytes)
    memory, store, arena = FileMemory(fd), dist.HashStore(), map_shared(fd, shape)
    receiver = CudaIpcReceiver(memory, arena, store)
    batches = channel.send_batches(memory, store, shape, torch.device("cpu"))
    for number in range(channel.BATCHES):
        assert not channel._is_right(arena, shape, number)
        assert next(batches) > 0
        assert channel._is_right(arena, shape, number)
    assert next(batches, None) is None
    receiver.close()
    os.close(fd)

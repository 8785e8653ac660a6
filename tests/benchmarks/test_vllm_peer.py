"""vLLM as a peer: its processes and the front of its encoder disaggregation, with stand-ins for vLLM."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from benchmarks import checkpoint
from benchmarks.client import BenchResult, BenchSpec, run_benchmark
from benchmarks.overlap import main as overlap
from benchmarks.overlap_plan import VLLM, Deployment
from benchmarks.overlap_table import table
from benchmarks.overlap_workloads import WORKLOADS
from benchmarks.servers import ServerFailed, model_folder, process_tree, running, weight_flags
from benchmarks.vllm_peer import VllmServer, vllm_plan
from benchmarks.vllm_proxy import EncodeFirst
from benchmarks.workloads import Prompt, Text, peers
from tests.benchmarks.fake_server import FakeServer, serving
from tests.benchmarks.test_overlap import line

FAKE_VLLM = """\
#!{python}
import http.server, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"data": [{{"id": "fake"}}]}}')
{body}
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def fake_env(folder: Path, body: str = "") -> Path:
    """An environment whose `vllm` only says that it is healthy."""
    program = folder / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(FAKE_VLLM.format(python=sys.executable, body=body))
    program.chmod(0o755)
    return folder


def through_proxy(encoder: FakeServer, model: FakeServer, prompts: list[Prompt]) -> BenchResult:
    async def ask() -> BenchResult:
        async with serving(encoder) as encoder_url, serving(model) as model_url:
            front = EncodeFirst(encoder_url, model_url)
            async with serving(front) as url:
                spec = BenchSpec(url, prompts, backend="vllm-chat", warmup_requests=0, progress=False)
                return await asyncio.wait_for(run_benchmark(spec), 30)

    return asyncio.run(ask())


def test_every_image_is_encoded_alone_before_the_model_sees_the_request():
    encoder, model = FakeServer(first_delay=0.05), FakeServer(contents=("x", "y"))
    prompt = peers.prompts(1, seed=3, output_len=2)[0]
    seen: list[int] = []
    model_bodies = model.bodies

    class Watched(list):
        def append(self, body: dict) -> None:
            seen.append(len(encoder.bodies))
            model_bodies.append(body)

    model.bodies = Watched()
    result = through_proxy(encoder, model, [prompt])
    assert result.records[0].ok and result.records[0].output_tokens == 2
    assert seen == [len(prompt.images)]
    sent = [body["messages"][0]["content"] for body in encoder.bodies]
    assert [part for (part,) in sent] == [image.as_json() for image in prompt.images]
    assert all(body["max_completion_tokens"] == 1 and not body["stream"] for body in encoder.bodies)
    assert model_bodies[0]["messages"] == prompt.messages()


def test_text_goes_straight_to_the_model():
    encoder, model = FakeServer(), FakeServer()
    assert through_proxy(encoder, model, [Prompt((Text("hello"),), 3)]).failed == 0
    assert not encoder.bodies and len(model.bodies) == 1


def test_a_request_fails_when_an_image_was_not_encoded():
    encoder, model = FakeServer(faults={2: "500"}), FakeServer()
    result = through_proxy(encoder, model, peers.prompts(1, seed=3))
    assert result.failed == 1 and "encoder" in (result.records[0].error or "")
    assert not model.bodies


def test_a_failure_of_the_model_reaches_the_client():
    result = through_proxy(FakeServer(), FakeServer(faults={0: "500"}), peers.prompts(1, seed=3))
    assert result.failed == 1 and "out of blocks" in (result.records[0].error or "")


@pytest.mark.parametrize("encoder_cores", [range(0), range(1, 2)])
def test_vllm_ends_with_all_its_processes(tmp_path, encoder_cores):
    plan = vllm_plan(fake_env(tmp_path / "env"), "model", "float32", range(1), encoder_cores)
    with running(plan, tmp_path) as server:
        assert server.base_url.startswith("http://127.0.0.1:")
        family = process_tree(server.process.pid)
        assert len(family) == (3 if encoder_cores else 2)
        commands = "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in family)
        shared = {Path(found) for found in re.findall(r'"(/[^"]*vllm-embeddings-[^"]*)"', commands)}
        assert len(shared) == (1 if encoder_cores else 0) and all(folder.is_dir() for folder in shared)
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)
    assert not any(folder.exists() for folder in shared)


def test_a_vllm_that_does_not_start_is_reported(tmp_path):
    env = fake_env(tmp_path / "env", body="sys.exit('no such instruction')")
    plan = vllm_plan(env, "model", "float32", range(2))
    with (
        pytest.raises(ServerFailed, match=r"(?s)no such instruction.*ended with code 1"),
        running(plan, tmp_path),
    ):
        pass


def test_the_two_sides_of_a_disaggregation_hash_their_images(tmp_path):
    plain = VllmServer(tmp_path, "model", "float32", "0-1", 2).command(8001)
    assert plain[plain.index("--mm-processor-cache-gb") + 1] == "0"
    side = VllmServer(tmp_path, "model", "float32", "0", 2, "ec_producer", "/shared").command(8001)
    transfer = json.loads(side[side.index("--ec-transfer-config") + 1])
    assert "--mm-processor-cache-gb" not in side
    assert transfer["ec_role"] == "ec_producer"
    assert transfer["ec_connector_extra_config"] == {"shared_storage_path": "/shared"}


def test_vllm_gets_its_own_threads_and_allocator(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    variables = VllmServer(tmp_path, "model", "float32", "0-1", 2).variables()
    assert "OMP_NUM_THREADS" not in variables
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert variables["LD_PRELOAD"] == str(tmp_path / "lib" / "libiomp5.so")


def test_disaggregated_vllm_gets_the_cores_of_our_ranks(tmp_path):
    flags = Deployment(WORKLOADS["peers"], "float32", 512, "small", tmp_path).plan(VLLM).flags
    assert flags[flags.index("--cores") + 1] == "0"
    assert flags[flags.index("--encoder-cores") + 1] == "1"


def test_disaggregated_vllm_needs_its_environment(capsys):
    with pytest.raises(SystemExit):
        overlap(["--schemes", "rserve", VLLM])
    assert "--vllm" in capsys.readouterr().err


def test_ratios_can_be_to_vllm():
    text = table([line("rserve", ttfts=(0.8, 1.6)), line(VLLM)], VLLM)
    assert "TTFT / vllm-epd" in text
    row = next(row for row in text.splitlines() if row.startswith("| rserve"))
    assert "0.80 [0.80, 0.80]" in row


def test_weights_are_random_only_where_there_are_none(tmp_path):
    assert weight_flags("small") == ("--load-format", "dummy")
    assert weight_flags("tiny") == ()
    (tmp_path / "config.json").write_text("{}")
    assert model_folder("tiny").name == "tiny" and model_folder(str(tmp_path)) == tmp_path


def test_a_written_checkpoint_is_the_model_with_random_weights(tmp_path):
    checkpoint.write(model_folder("tiny"), tmp_path, torch.float32, seed=1)
    assert (tmp_path / "config.json").read_text() == (model_folder("tiny") / "config.json").read_text()
    with (
        safe_open(tmp_path / "model.safetensors", "pt") as written,
        safe_open(model_folder("tiny") / "model.safetensors", "pt") as shipped,
    ):
        assert set(written.keys()) == set(shipped.keys())
        name = "model.layers.0.self_attn.q_proj.weight"
        assert written.get_tensor(name).shape == shipped.get_tensor(name).shape
        assert not torch.equal(written.get_tensor(name), shipped.get_tensor(name).float())

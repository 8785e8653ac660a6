"""run_all: what is chosen, what is run again, what the page shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import index_page, publish, run_all
from benchmarks.experiments import EXPERIMENTS, Experiment, Options, chosen
from benchmarks.peer_targets import HttpTarget
from benchmarks.peers import FULL, QUICK, table
from benchmarks.servers import ServerPlan, process_tree
from benchmarks.step_cost import Queue, measure


def options(tmp_path, **fields):
    return Options(tmp_path, **fields)


def test_experiments_can_be_chosen_by_name_or_by_figure(tmp_path):
    assert [e.name for e in chosen(options(tmp_path), ["smoke"])] == ["smoke"]
    assert [e.name for e in chosen(options(tmp_path), ["fig16"])] == ["paper"]
    assert [e.name for e in chosen(options(tmp_path), ["fig20"])] == ["overlap", "paper"]
    with pytest.raises(ValueError, match="no fig99"):
        chosen(options(tmp_path), ["fig99"])


def test_experiments_for_gpus_wait_for_gpus(tmp_path):
    assert "gpus" not in [e.name for e in chosen(options(tmp_path), [])]
    assert "gpus" in [e.name for e in chosen(options(tmp_path, device="cuda", model="M"), [])]


def test_quick_takes_under_twenty_minutes_by_its_own_estimate(tmp_path):
    assert sum(e.minutes[0] for e in chosen(options(tmp_path), [])) < 20


def test_every_command_names_a_module_and_accepts_its_flags(tmp_path):
    for experiment in EXPERIMENTS:
        for words in experiment.commands(options(tmp_path, device="cuda", model="M")):
            assert (Path(run_all.ROOT) / Path(*words[0].split("."))).with_suffix(".py").exists()


def test_a_finished_experiment_runs_again_only_when_its_commands_change(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(run_all, "call", lambda words: calls.append(list(words)) or 0)
    command = ["benchmarks.smoke"]
    experiment = Experiment("one", "a test", (), (1, 1), lambda _: [command])
    assert run_all.run([experiment], options(tmp_path), redo=False) == []
    assert run_all.run([experiment], options(tmp_path), redo=False) == []
    assert len(calls) == 1
    run_all.run([experiment], options(tmp_path), redo=True)
    assert len(calls) == 2
    command.append("--more")
    run_all.run([experiment], options(tmp_path), redo=False)
    assert len(calls) == 3


def test_a_failed_experiment_is_named_and_the_next_one_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(run_all, "call", lambda words: int(words[0] == "bad"))
    bad = Experiment("bad", "fails", (), (1, 1), lambda _: [["bad"]])
    good = Experiment("good", "works", (), (1, 1), lambda _: [["good"]])
    assert run_all.run([bad, good], options(tmp_path), redo=False) == ["bad"]
    assert run_all.run([bad, good], options(tmp_path), redo=False) == ["bad"]
    assert (tmp_path / "done" / "good.json").exists()


def test_cuda_without_enough_gpus_is_refused_with_both_numbers(tmp_path, capsys):
    code = run_all.main(["--device", "cuda", "--model", "M", "--pp", "900", "--out", str(tmp_path)])
    assert code == 2
    assert "needs 901 GPUs" in capsys.readouterr().err


def test_the_page_shows_every_figure_and_table(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "fig12_simulated-clean-h100.png").write_bytes(b"")
    (tmp_path / "figures" / "fig12_simulated-clean-h100.csv").write_text("a\n1\n2\n")
    (tmp_path / "paper.md").write_text("# Title\n\n| a | b<c |\n|---|---|\n| 1 | 2 |\n")
    experiments = [(e, e.commands(options(tmp_path))) for e in chosen(options(tmp_path), [])]
    text = index_page.write(tmp_path, experiments).read_text()
    assert "Figure 12" in text and "(2 rows)" in text and "rserve.cli paper" in text
    assert "<th>b&lt;c</th>" in text and "<td>2</td>" in text and "---" not in text


def test_a_server_plan_is_a_command_with_a_free_port():
    command = ServerPlan("tiny", ("--scheme", "gllm")).command()
    assert command[0] == sys.executable
    assert command[command.index("--port") + 1] == "0"


def test_a_process_tree_holds_children_and_their_cpu_time():
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stdin=0)"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        for _ in range(1000):
            if len(process_tree(os.getpid())) >= 3:
                break
        tree = process_tree(os.getpid())
        assert child.pid in tree and all(seconds >= 0 for seconds in tree.values())
    finally:
        child.stdin.close()
        child.wait(20)


@pytest.mark.parametrize("scheme", ["gllm", "rserve"])
def test_the_queue_of_the_step_benchmark_keeps_its_length(scheme):
    measure(scheme, waiting=12, steps=5)
    queue = Queue(scheme, 12)
    assert len(queue.core.requests) == 12


def test_peer_loads_are_those_of_the_comparison():
    assert {(c.images, c.output_len, c.at_once) for c in FULL} >= {
        (True, 1, 1),
        (True, 128, 8),
        (False, 1, 20),
    }
    assert {c.at_once for c in QUICK} == {1, 8}
    assert QUICK[0].prompts(0)[0].parts == QUICK[0].prompts(0)[0].parts
    assert QUICK[0].prompts(0)[0].parts != QUICK[0].prompts(1)[0].parts
    assert not FULL[-1].prompts(0)[0].images
    assert HttpTarget("x", "http://h/v1/", "rserve").name == "x"


def test_the_table_of_peers_compares_rounds():
    lines = [
        {
            "label": label,
            "dtype": "float32",
            "case": "4 images",
            "repeat": repeat,
            "failed": 0,
            "mean_ttft_ms": ttft,
            "mean_tpot_ms": None,
            "output_throughput": 1.0,
            "input_throughput": 2.0,
            "hardware": "h",
            "commit": "c",
        }
        for repeat in range(3)
        for label, ttft in (("RServe", 50.0), ("transformers", 100.0))
    ]
    assert "0.50 [0.50, 0.50]" in table(lines)


def test_publishing_replaces_the_set_and_fills_only_slots_that_have_a_table(tmp_path):
    run, docs = tmp_path / "run", tmp_path / "docs"
    (run / "figures").mkdir(parents=True)
    (docs / "results").mkdir(parents=True)
    (docs / "results" / "old.png").write_bytes(b"")
    (run / "paper.md").write_text("| new |\n")
    for name in ("fig12_simulated-clean-h100", "fig12_simulated-vidur-h100"):
        (run / "figures" / f"{name}.png").write_bytes(b"")
    page = (
        "before\n<!-- table: paper.md -->\nold\n<!-- end -->\n<!-- table: none.md -->\nkept\n<!-- end -->\n"
    )
    (docs / "performance.md").write_text(page)
    assert publish.main(["--results", str(run), "--docs", str(docs)]) == 0
    names = sorted(path.name for path in (docs / "results").iterdir())
    assert names == ["README.md", "fig12_simulated-clean-h100.png", "paper.md"]
    text = (docs / "performance.md").read_text()
    assert "| new |" in text and "old" not in text and "kept" in text


def test_a_published_table_of_a_folder_inside_carries_its_name(tmp_path):
    run = tmp_path / "run"
    (run / "vllm").mkdir(parents=True)
    for name in ("peers.md", "vllm/peers.md"):
        (run / name).write_text(name)
    copied = publish.copy(run, tmp_path / "set")
    assert {path.name: path.read_text() for path in copied} == {
        "peers.md": "peers.md",
        "vllm-peers.md": "vllm/peers.md",
    }
    page = publish.fill("<!-- table: vllm/peers.md -->\n<!-- end -->", run)
    assert page.splitlines()[1] == "vllm/peers.md"

"""Sweeps, and the command line that makes them."""

import argparse
import json

import pytest

from rserve.sim.cli import add_parsers, scenarios_of
from rserve.sim.output import append_lines
from rserve.sim.scenario import Scenario
from rserve.sim.sweep import expand, parse_values, run_all


def run(*argv):
    parser = argparse.ArgumentParser()
    add_parsers(parser.add_subparsers())
    args = parser.parse_args(argv)
    return args, lambda: args.run(args)


def test_ranges_and_lists_of_values():
    assert parse_values("request_rate", "0.2:1.0:3") == [0.2, 0.6, 1.0]
    assert parse_values("token_budget", "512,1024") == [512, 1024]
    assert parse_values("token_budget", "512:2048:4") == [512, 1024, 1536, 2048]
    assert parse_values("workload", "mmmu-1k,mmmu-2k") == ["mmmu-1k", "mmmu-2k"]
    assert parse_values("request_rate", "inf") == [float("inf")]


@pytest.mark.parametrize(("name", "text"), [("speed", "1"), ("request_rate", "1:2:1"), ("pp", "1:2:3")])
def test_malformed_sweeps_are_refused(name, text):
    with pytest.raises(ValueError, match="--sweep"):
        parse_values(name, text)


def test_all_combinations_are_run_the_last_field_fastest():
    points = expand(Scenario(), {"scheme": ["gllm", "rserve"], "seed": [0, 1]})
    assert [(p.scheme, p.seed) for p in points] == [("gllm", 0), ("gllm", 1), ("rserve", 0), ("rserve", 1)]


def test_processes_give_the_results_of_one_process_in_the_same_order():
    points = expand(Scenario(num_requests=5), {"request_rate": [0.5, 1.0, 2.0]})
    one, two = ([result.line for result in run_all(points, jobs)] for jobs in (1, 2))
    assert one == two and [line["request_rate"] for line in one] == [0.5, 1.0, 2.0]


def test_simulate_appends_a_line_for_every_scheme_and_rate_and_a_trace_opens(tmp_path):
    out, trace = tmp_path / "results.jsonl", tmp_path / "trace.json"
    common = ["simulate", "--num-requests", "5", "-o", str(out), "--jobs", "1"]
    _, call = run(*common, "--scheme", "gllm,rserve", "--sweep", "request-rate=0.5,inf")
    assert call() == 0
    _, call = run(*common, "--trace", str(trace))
    assert call() == 0
    lines = [json.loads(text) for text in out.read_text().splitlines()]
    assert [line["scheme"] for line in lines] == ["gllm", "gllm", "rserve", "rserve", "rserve"]
    assert lines[1]["request_rate"] == "inf" and all(line["source"] == "simulated" for line in lines)
    assert all(line["bound_throughput"] > line["input_throughput"] > 0 for line in lines)
    assert json.loads(trace.read_text())["traceEvents"]


def test_without_a_file_the_lines_go_to_standard_output(capsys):
    assert run("simulate", "--model", "small", "--pp", "1", "--num-requests", "2", "--jobs", "1")[1]() == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["model"] == "small"


def test_wrong_calls_are_answered_with_one_line(capsys):
    for wrong in (["--scheme", "best"], ["--sweep", "pp"], ["--trace", "t", "--scheme", "gllm,rserve"]):
        assert run("simulate", "--num-requests", "2", *wrong)[1]() == 2
    assert capsys.readouterr().err.count("rserve simulate:") == 3


def test_gllm_alone_needs_no_encoders():
    args, _ = run("simulate", "--scheme", "gllm", "--encoders", "0")
    assert [s.num_encoders for s in scenarios_of(args)] == [0]


def test_lines_with_not_a_number_are_refused(tmp_path):
    with pytest.raises(ValueError):
        append_lines(tmp_path / "x.jsonl", [{"value": float("nan")}])

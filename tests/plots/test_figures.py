"""Figures from result lines: what is drawn, what it is called, and the numbers behind it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from gllm.core.request_life import RequestLife
from gllm.core.trace import Span
from gllm.core.trace_file import trace_json
from plots import fig10, fig12, fig13, fig16, fig19, fig20, style, table1, timeline
from plots.__main__ import FIGURES, draw_all, main
from plots.lines import (
    Point,
    curve_name,
    groups,
    half_width,
    hardware_title,
    mean_change,
    parallelism,
    points,
    request_rate,
)
from plots.rate_panels import LOG_TTFT, THROUGHPUT, TTFT, change_note, curves_of, draw_panel, quoted_share
from plots.slo import coverage, slo_title
from plots.trace import load
from tests.plots import sample_lines


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return sample_lines.all_lines()


def rows_in(paths: list[Path]) -> list[dict[str, str]]:
    (table,) = [path for path in paths if path.suffix == ".csv"]
    with open(table, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_figure_becomes_a_picture_a_pdf_and_the_rows_behind_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(line) for line in sample_lines.all_lines()))
    drawn = draw_all(tmp_path, tmp_path / "figures")
    assert drawn.pop("fig10") == []
    assert set(drawn) == set(FIGURES)
    for paths in drawn.values():
        assert sorted(path.suffix for path in paths) == [".csv", ".pdf", ".png"]
        assert all(path.stat().st_size > 0 for path in paths)
        assert rows_in(paths)


def test_figures_without_lines_are_not_drawn(tmp_path: Path) -> None:
    assert all(draw([], tmp_path) == [] for draw in FIGURES.values())
    assert list(tmp_path.iterdir()) == []


def test_only_the_named_figures_are_drawn_and_unknown_ones_refused(tmp_path: Path) -> None:
    assert main(["--results", str(tmp_path), "--only", "fig99"]) == 2
    assert set(draw_all(tmp_path, tmp_path, ["fig12"])) == {"fig12"}


def test_the_rows_behind_figure_12_are_the_lines(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    rows = rows_in(fig12.draw(lines, tmp_path))
    shown = {(r["workload"], r["curve"], float(r["request_rate"])): float(r["ttft_s"]) for r in rows}
    (line,) = [
        line
        for line in lines
        if (line["experiment"], line["scheme"], line["workload"]) == ("fig12", "rserve", "mmmu-2k")
        and line["request_rate"] == 0.4
    ]
    assert shown["mmmu-2k", "RServe", 0.4] == pytest.approx(line["mean_ttft_ms"] / 1000)
    assert len(shown) == 2 * 5 * 6


def test_names_of_files_and_titles_say_where_numbers_come_from(
    tmp_path: Path, lines: list[dict[str, Any]]
) -> None:
    assert {path.stem for path in fig13.draw(lines, tmp_path)} == {"fig13_simulated-clean-h100"}
    (group,) = groups(lines, "fig12")
    assert group.suffix == "simulated, costs clean (H100)"
    (measured,) = groups(lines, "fig20")
    assert measured.suffix == "measured on 2 cores of Intel Xeon"


def test_cost_sets_get_figures_of_their_own(lines: list[dict[str, Any]]) -> None:
    own = [line for line in lines if line["experiment"] == "fig12"]
    found = groups([*lines, *(line | {"costs": "vidur"} for line in own)], "fig12")
    assert [(group.costs, len(group.lines)) for group in found] == [("clean", len(own)), ("vidur", len(own))]


def test_curves_are_named_by_label_or_scheme_and_parallelism() -> None:
    line = sample_lines.line("fig18", "rserve", "mmmu-1k", 1.0)
    assert (curve_name(line), parallelism(line)) == ("RServe", "PP4+E1")
    assert curve_name(line | {"label": "vLLM PP4"}) == "vLLM PP4"
    assert parallelism(line | {"pp": 2, "tp": 2, "encoders": 0}) == "TP2×PP2"
    assert parallelism(line | {"pp": 1}) == "1+E1"


def test_repeats_become_a_median_with_an_interval_from_three_on() -> None:
    lines = [
        {"request_rate": rate, "y": y} for rate, y in ((1, 1.0), (1, 2.0), (1, 6.0), (2, 3.0), ("inf", 9.0))
    ]
    found = points(lines, request_rate, lambda line: line["y"])
    assert [(point.x, point.y, point.repeats) for point in found] == [(1.0, 2.0, 3), (2.0, 3.0, 1)]
    assert found[1].half_width == 0.0
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(2.48, abs=0.01)


def test_changes_are_averaged_over_shared_rates_and_set_beside_the_papers() -> None:
    base = [Point(1, 10, 0, 1), Point(2, 20, 0, 1)]
    ours = [Point(1, 8, 0, 1), Point(2, 18, 0, 1), Point(3, 1, 0, 1)]
    assert mean_change(ours, base) == pytest.approx(-0.15)
    note = change_note({"RServe": ours, "gLLM-epd": base}, "RServe", "gLLM-epd", -0.18)
    assert note == "RServe vs gLLM-epd: −15 % (paper −18 %)"
    assert change_note({}, "RServe", "gLLM-epd", -0.18) == ""
    assert quoted_share(0.085) == "+8.5 %"


def test_the_bound_is_dashed_and_the_axis_logarithmic(lines: list[dict[str, Any]]) -> None:
    _, (axis,) = style.new_figure()
    own = [line for line in lines if line["experiment"] == "fig12" and line["workload"] == "mmmu-1k"]
    draw_panel(axis, own, LOG_TTFT)
    (bound,) = [line for line in axis.lines if line.get_label() == "bound"]
    assert bound.get_linestyle() == "--"
    assert list(bound.get_ydata()) == [0.5] * 6
    assert axis.get_yscale() == "log"


def test_every_legend_has_one_order(lines: list[dict[str, Any]]) -> None:
    own = [line for line in reversed(lines) if line["experiment"] == "fig12"]
    assert list(curves_of(own, THROUGHPUT)) == ["vLLM TP4", "vLLM PP4", "gLLM", "gLLM-epd", "RServe"]
    assert style.look_of("RServe, five A100s") == style.look_of("RServe (TP4+E1)") == style.LOOKS["RServe"]
    assert style.look_of("RServe-intra") != style.LOOKS["RServe"]
    assert style.look_of("gLLM PP5") == style.LOOKS["gLLM"]
    assert style.in_order(["zz", "RServe (TP4)", "gLLM", "RServe"]) == [
        "gLLM",
        "RServe",
        "RServe (TP4)",
        "zz",
    ]


def test_curves_differ_in_marker_dash_and_hatch_and_in_colour() -> None:
    looks = list(style.LOOKS.values())
    for attribute in ("colour", "marker", "dash", "hatch"):
        assert len({str(vars(look)[attribute]) for look in looks}) == len(looks)


def test_legends_fit_into_the_figure() -> None:
    assert style.legend_columns(["RServe"] * 6, style.DOUBLE) == 6
    assert style.legend_columns(["gLLM-epd (PP4+E1)"] * 7, style.DOUBLE) == 4
    assert style.legend_columns(["language model TP4"] * 3, style.SINGLE) <= 2


def test_the_c_sweep_ends_with_the_whole_request(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    rows = rows_in(fig16.draw(lines, tmp_path))
    assert [row["C"] for row in rows if row["workload"] == "items-1024"] == [
        "1024",
        "2048",
        "4096",
        "8192",
        "all",
    ]


def test_repeated_measurements_carry_their_interval(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    rows = rows_in(fig20.draw(lines, tmp_path))
    assert {row["repeats"] for row in rows} == {"3"}
    assert all(float(row["half_width_95"]) > 0 for row in rows)


def test_strict_limits_are_told_and_coverage_is_the_area(lines: list[dict[str, Any]], tmp_path: Path) -> None:
    own = [line for line in lines if line["experiment"] == "fig18"]
    assert slo_title(own) == "TTFT ≤ 1.4 / 2 s"
    assert coverage([Point(1, 100, 0, 1), Point(3, 0, 0, 1)]) == 100
    assert {row["curve"] for row in rows_in(fig19.draw(lines, tmp_path))} >= {"RServe (TP4+E1)", "gLLM (PP4)"}


def test_table_1_gives_scores_and_agreement_with_transformers(lines: list[dict[str, Any]]) -> None:
    rows = table1.table_rows([line for line in lines if line["experiment"] == "table1"])
    found = {row["framework"]: (row["score"], row["agreement"], row["paper"]) for row in rows}
    assert found["RServe"] == (97.0, 1.0, None)  # the paper's score is of MMMU, not of a synthetic set
    assert found["RServe-intra"][1] == 0.99
    assert list(found) == ["gLLM", "gLLM-epd", "RServe-intra", "RServe", "transformers"]
    mmmu = [line | {"workload": "mmmu"} for line in lines if line["experiment"] == "table1"]
    assert {row["framework"]: row["paper"] for row in table1.table_rows(mmmu)}["RServe"] == 62.6


def test_machines_are_named_in_few_words() -> None:
    assert (
        hardware_title("2 cores of Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz")
        == "2 cores of Intel Xeon Platinum 8481C"
    )
    assert hardware_title("h100") == "H100"


def make_trace(path: Path) -> Path:
    spans = [
        Span("encoder 0", "encode", "encode", 1.0, 0.5, "a"),
        Span("stage 0", "prefill", "prefill", 1.5, 0.25, "a,b"),
        Span("stage 0", "send", "transfer", 1.75, 0.05, "a"),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trace_json(spans, ["stage 0", "encoder 0", "idle"]))
    return path


def test_a_trace_becomes_bars_by_rank_and_request(tmp_path: Path) -> None:
    trace = load(make_trace(tmp_path / "t.json"))
    bars = trace.bars
    assert trace.ranks == ["encoder 0", "stage 0"]
    assert [(bar.rank, bar.kind, bar.requests) for bar in bars][1] == ("stage 0", "prefill", ("a", "b"))
    assert [bar.start for bar in bars] == pytest.approx([0.0, 0.5, 0.75])
    assert len(set(timeline.colours_of([trace]).values())) == 2
    rows = rows_in(timeline.draw(tmp_path / "t.json", tmp_path / "out.png"))
    assert [row["requests"] for row in rows] == ["a", "a b", "a"]


def test_lives_and_bubbles_of_a_trace_are_read_and_busy_shares_follow(tmp_path: Path) -> None:
    spans = [Span("stage 0", "b", "prefill", 2.0, 1.0, "a"), Span("stage 0", "b", "prefill", 2.5, 1.0, "b")]
    lives = [RequestLife("b", 2.0, 5.0, first_token=4.0), RequestLife("a", 1.0, 3.0)]
    (tmp_path / "t.json").write_text(trace_json(spans, ["stage 0"], lives))
    trace = load(tmp_path / "t.json")
    assert [(life.request, life.start, life.end) for life in trace.lives] == [
        ("a", 0.0, 2.0),
        ("b", 1.0, 4.0),
    ]
    assert trace.lives[1].moments == {"arrival": 1.0, "first prefill": 1.5, "first token": 3.0}
    assert trace.requests == ["a", "b"] and trace.end == 4.0
    assert [(bar.start, bar.end) for bar in trace.bars if bar.kind == "bubble"] == [(0.0, 1.0), (2.5, 4.0)]
    assert trace.busy_share("stage 0") == pytest.approx(1.5 / 4)
    assert timeline.busy_table(trace) == "stage 0  busy  37.5%  bubbles 2.500 s"


def test_a_part_of_a_trace_is_cut_at_its_ends_and_has_shares_of_its_own(tmp_path: Path) -> None:
    spans = [Span("stage 0", "b", "prefill", 2.0, 1.0, "a"), Span("stage 0", "b", "prefill", 4.0, 1.0, "b")]
    lives = [RequestLife("a", 1.0, 3.0), RequestLife("b", 3.0, 6.0, first_token=5.0)]
    (tmp_path / "t.json").write_text(trace_json(spans, ["stage 0"], lives))
    part = load(tmp_path / "t.json").within(1.5, 3.5)
    assert [(bar.kind, bar.start, bar.end) for bar in part.bars] == [
        ("prefill", 1.5, 2.0),
        ("prefill", 3.0, 3.5),
        ("bubble", 2.0, 3.0),
    ]
    assert [(life.request, life.start, life.end) for life in part.lives] == [("a", 1.5, 2.0), ("b", 2.0, 3.5)]
    assert part.busy_share("stage 0") == pytest.approx(0.5)
    assert part.within(9.0, 10.0).busy_share("stage 0") == 0.0


def test_the_timeline_command_draws_a_part_and_tells_of_files_it_cannot_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_trace(tmp_path / "t.json")
    assert timeline.main([str(path), "--start", "0.2", "--end", "0.6"]) == 0
    assert path.with_suffix(".png").exists()
    assert "stage 0    busy" in capsys.readouterr().out
    assert timeline.main([str(path), "--start", "9"], "rserve timeline") == 1
    assert "rserve timeline: nothing happens from 9 s on" in capsys.readouterr().err
    assert timeline.main([str(tmp_path / "missing.json")]) == 1
    (tmp_path / "lines.jsonl").write_text("{}\n{}\n")
    assert timeline.main([str(tmp_path / "lines.jsonl")]) == 1
    assert "lines.jsonl is no trace" in capsys.readouterr().err


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    with pytest.raises(ValueError, match="no complete events"):
        load(tmp_path / "t.json")


def test_figure_10_needs_both_traces(tmp_path: Path) -> None:
    make_trace(tmp_path / "traces" / "fig10-rserve.json")
    assert fig10.draw_folder(tmp_path / "traces", tmp_path) == []
    make_trace(tmp_path / "traces" / "fig10-rserve-intra.json")
    assert {path.name for path in fig10.draw_folder(tmp_path / "traces", tmp_path)} == {
        "fig10.png",
        "fig10.pdf",
        "fig10.csv",
    }


def test_a_long_title_is_broken_to_the_width_of_its_figure() -> None:
    figure, _ = style.new_figure()
    style.title(figure, "Figure 20. TTFT, one LLM device and one encoder, small-vision, vision 224\nmeasured")
    figure.canvas.draw()
    box = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert figure.get_suptitle().endswith("\nmeasured")


def test_the_highest_point_of_a_panel_lies_inside_its_frame(lines: list[dict[str, Any]]) -> None:
    one_rate = [line for line in lines if line["experiment"] == "fig20"][:1]
    figure, (axis,) = style.new_figure()
    curves = draw_panel(axis, one_rate, TTFT)
    (point,) = next(iter(curves.values()))
    assert point.y < axis.get_ylim()[1]
    style.plt.close(figure)

"""Constant sets and devices: every number has a source, tables interpolate, mistakes are named."""

import json

import pytest

from rserve.sim.costs import Table, constant_sets, load_constants, measured_sets, read_sourced
from rserve.sim.hardware import DEVICES_FILE, load_hardware, load_model

OVERLAYS = {"all-reduce-x3", "host-relay", "vllm"}
WHOLE = ["clean", "vidur", "fitted-cpu", *(f"clean+{name}" for name in sorted(OVERLAYS))]


def test_an_overlay_alone_is_refused_and_all_others_are_whole_sets():
    for name in constant_sets():
        if name in OVERLAYS:
            with pytest.raises(ValueError, match="lay an overlay over a whole set"):
                load_constants(name)
        else:
            load_constants(name)


@pytest.mark.parametrize("name", WHOLE)
def test_every_constant_of_every_set_has_a_unit_and_a_source(name):
    entries = read_sourced(name)
    assert all(entry.unit and entry.source for entry in entries.values())
    assert load_constants(name).name == name


def test_every_number_of_every_device_has_a_source():
    content = json.loads(DEVICES_FILE.read_text())
    assert set(content) >= {"h100", "a100-40g-pcie", "h200", "l40s", "cpu"}
    for device in content.values():
        numbers = [entry for entry in device.values() if isinstance(entry, dict)]
        assert len(numbers) == 4 and all(entry["source"] and entry["unit"] for entry in numbers)


def test_a_set_measured_here_brings_its_device():
    assert measured_sets() == ["fitted-cpu"]
    device = load_hardware("fitted-cpu")
    assert device.name == "fitted-cpu" and device.peak_flops < 1e12
    assert load_constants("fitted-cpu").gemm_utilisation.best <= 1


def test_a_table_is_linear_between_its_points_and_constant_outside():
    table = Table(((256, 0.60), (512, 0.75), (1024, 0.64)))
    assert table.at(1) == 0.60 and table.at(256) == 0.60
    assert table.at(384) == pytest.approx(0.675)
    assert table.at(512) == pytest.approx(0.75) and table.at(768) == pytest.approx(0.695)
    assert table.at(5000) == 0.64 and table.best == 0.75


@pytest.mark.parametrize("points", [(), ((2, 0.5), (1, 0.5)), ((1, 0.0),), ((1, 1.5),)])
def test_a_table_refuses_points_that_make_no_sense(points):
    with pytest.raises(ValueError):
        Table(points)


def test_an_overlay_changes_only_what_it_names():
    clean, tripled = load_constants("clean"), load_constants("clean+all-reduce-x3")
    assert tripled.all_reduce_factor == 3 * clean.all_reduce_factor
    assert tripled.gemm_utilisation == clean.gemm_utilisation


def test_a_set_can_be_a_file_and_a_number_without_source_is_refused(tmp_path):
    good = {"value": 0.5, "unit": "s", "source": "a test"}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"extends": "clean", "constants": {"iteration_overhead": good}}))
    assert load_constants(str(path)).iteration_overhead == 0.5
    path.write_text(
        json.dumps({"extends": "clean", "constants": {"iteration_overhead": good | {"source": ""}}})
    )
    with pytest.raises(ValueError, match="no source"):
        load_constants(str(path))
    path.write_text(json.dumps({"extends": "clean", "constants": {"speed_of_light": good}}))
    with pytest.raises(ValueError, match="speed_of_light"):
        load_constants(str(path))


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="clean"):
        load_constants("dirty")
    with pytest.raises(ValueError, match="h100"):
        load_hardware("abacus")
    with pytest.raises(ValueError, match="vl-72b"):
        load_model("qwen9")

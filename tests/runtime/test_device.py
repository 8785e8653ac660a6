import pytest
import torch

from gllm.config import ConfigError
from gllm.runtime.device import pick_device, pick_encoder_device


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


def test_ranks_take_gpus_in_order_and_a_missing_one_is_named(two_gpus):
    assert [pick_device("auto", index).index for index in range(2)] == [0, 1]
    with pytest.raises(ConfigError, match="2 GPUs are here, 3 are needed"):
        pick_device("cuda", 2)


def test_encoders_take_free_gpus_first_and_then_share(two_gpus):
    assert [pick_encoder_device("cuda", wanted).index for wanted in (1, 2, 3)] == [1, 0, 1]


def test_the_cpu_is_taken_when_asked_for_or_alone(two_gpus, monkeypatch):
    assert pick_encoder_device("cpu", 1).type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto", 0).type == "cpu"
    with pytest.raises(ConfigError):
        pick_encoder_device("cuda", 1)

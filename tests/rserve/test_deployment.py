"""What the parent process knows of its encoders."""

from gllm.config import CacheConfig, ModelConfig
from rserve.config import EpdConfig, RServeConfig
from rserve.runtime.deployment import EpdDeployment


def test_each_epoch_of_an_encoder_has_an_inbox_of_its_own():
    config = RServeConfig(
        model=ModelConfig("tiny"), cache=CacheConfig(num_kv_blocks=16), epd=EpdConfig(embedding_gib=0.001)
    )
    deployment = EpdDeployment(config)
    try:
        addresses = []
        for _ in range(2):
            deployment.start_encoder(0)  # planned; nothing is started before `start`
            addresses.append(deployment.addresses["encoder0"])
        assert len(set(addresses)) == 2
        assert "epoch" in deployment._plans["encoder0"].spec
        assert addresses[1] in deployment._plans["encoder0"].spec
    finally:
        deployment.stop(grace_s=0.0)

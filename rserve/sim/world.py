"""Puts a scheme together: production core and dispatcher, simulated executors."""

from gllm.core.core_config import CoreConfig
from rserve.core.arena import Arena
from rserve.core.dispatcher import Dispatcher
from rserve.core.epd_core import Scheme, make_core

from .clock import VirtualClock
from .driver import SimulatedDriver
from .encoder import EncoderRanks, StageZeroItems
from .pipeline import SimulatedPipeline
from .scenario import Scenario


def make_world(
    scenario: Scenario, config: CoreConfig, pipeline: SimulatedPipeline, clock: VirtualClock
) -> SimulatedDriver:
    """A driver with its core and whoever encodes for it."""
    scheme = Scheme(scenario.scheme, scenario.intra_reading)
    driver = SimulatedDriver(make_core(scheme, config), pipeline, clock)
    if scheme.has_encoder_ranks:
        arena = Arena(scenario.embedding_tokens)
        dispatcher = Dispatcher(arena, scheme.batch_tokens(scenario.embedding_batch_size))
        driver.items = EncoderRanks(driver, dispatcher, pipeline.spans)
    else:
        driver.items = StageZeroItems(driver)
    return driver

"""Run a slave host: python -m tests.runtime.slave_process CONFIG_JSON; prints why it ended."""

import sys

from gllm.config import EngineConfig
from gllm.runtime.launcher import LaunchError
from gllm.runtime.slave import SlaveHost


def main(text: str) -> int:
    """The exit code."""
    config = EngineConfig.from_json(text)
    try:
        return SlaveHost(config, text).run()
    except LaunchError as error:
        print(error, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

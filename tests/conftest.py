"""Set before any test module is imported: without a GPU, Triton's kernels run in its interpreter."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

"""Run SGLang's own benchmark client, unmodified, without installing SGLang.

    pip download --no-deps sglang && pip install orjson pybase64
    python -m benchmarks.sglang_client sglang-*.whl --backend sglang-oai-chat --port 8000 \\
        --model FOLDER --dataset-name image --num-prompts 20 --image-count 2 --image-resolution 448x448

The wheel's package pulls in the GPU runtime, of which the client needs four small functions. They are stood
in for here; the client's files come from the wheel as they are. --model is the checkpoint's folder: the
client loads tokenizer and processor from it, and sends it as the model's name (serve with
--served-model-name FOLDER).
"""

from __future__ import annotations

import argparse
import runpy
import sys
import tempfile
import types
import zipfile
from pathlib import Path
from typing import Any

CLIENT = "sglang.benchmark.serving"


def main(argv: list[str] | None = None) -> int:
    """Unpack the client from the wheel, stand in for the rest, and run it with the other arguments."""
    parser = argparse.ArgumentParser(prog="sglang_client", description="Run SGLang's client from its wheel.")
    parser.add_argument("wheel", type=Path, help="sglang-….whl from `pip download --no-deps sglang`")
    args, client_args = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(args.wheel) as wheel:
            names = [name for name in wheel.namelist() if name.startswith("sglang/benchmark/")]
            wheel.extractall(folder, names)
        _stand_in(Path(folder) / "sglang")
        sys.argv = [CLIENT, *client_args]
        runpy.run_module(CLIENT, run_name="__main__", alter_sys=True)
    return 0


def resolve_base_url(base_url: str | None, host: str, port: int) -> str:
    """Where requests go: the base URL when one is given."""
    return base_url or f"http://{host}:{port}"


def resolve_host_port(base_url: str | None, host: str, port: int) -> str:
    """The same without a scheme."""
    return base_url or f"{host}:{port}"


def get_processor(folder: str, **_: Any) -> Any:
    """The checkpoint's processor with the PIL image processor; its video processor would need torchvision."""
    import transformers

    library: Any = transformers  # its classes are not typed

    class ImageOnlyProcessor(library.Qwen2_5_VLProcessor):  # type: ignore[misc]
        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            if name == "video_processor" and argument is None:
                return None
            return super().check_argument_for_proper_class(name, argument)

    processor_class: Any = ImageOnlyProcessor
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    images = library.AutoImageProcessor.from_pretrained(folder)
    return processor_class(images, tokenizer, None, chat_template=tokenizer.chat_template)


def _stand_in(package: Path) -> None:
    """Modules that the client imports outside its own folder."""
    _module("sglang", __path__=[str(package)])
    for name in ("sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation"):
        _module(name, __path__=[])
    _module("sglang.srt.disaggregation.utils", FAKE_BOOTSTRAP_HOST="2.2.2.2")
    _module("sglang.srt.utils.hf_transformers_utils", get_processor=get_processor)
    _module(
        "sglang.srt.utils.network", resolve_base_url=resolve_base_url, resolve_host_port=resolve_host_port
    )


def _module(name: str, **content: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


if __name__ == "__main__":
    raise SystemExit(main())

"""Packages, version ranges and the `rserve` command; requirements.txt pins what was tested."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "gllm" / "__init__.py").read_text()).group(1)

setup(
    name="rserve",
    version=VERSION,
    description="Serves large multimodal models and hides the vision encoder behind the prefill",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_namespace_packages(include=["gllm*", "rserve*", "benchmarks*", "evaluation*", "plots*"]),
    package_data={
        "gllm.models_data": ["*/*"],
        "rserve.sim": ["*.json"],
        "rserve.sim.constants": ["*.json"],
    },
    include_package_data=False,
    install_requires=[
        "aiohttp>=3.9",
        "fastapi>=0.110",
        "jinja2>=3.1",
        "msgspec>=0.18",
        "numpy>=1.26",
        "pillow>=10.3",
        "prometheus_client>=0.20",
        "pydantic>=2.6",
        "pyzmq>=25",
        "safetensors>=0.4.3",
        "starlette>=0.37",
        "tokenizers>=0.20",
        "torch>=2.11",
        "tqdm>=4.66",
        "transformers>=5",
        "uvicorn>=0.29",
    ],
    extras_require={
        "cuda": ["flash-attn>=2.6", "triton>=3.4"],
        "nixl": ["nixl>=0.3"],
        "ray": ["ray>=2.9"],
        "plots": ["matplotlib>=3.8"],
        "eval": ["datasets>=3", "pyarrow>=15"],
        "dev": [
            "httpx>=0.27",
            "hypothesis>=6.100",
            "matplotlib>=3.8",
            "mypy>=1.10",
            "openai>=1.30",
            "pyarrow>=15",
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.5",
            "ruff>=0.12",
            "schemathesis>=4",
        ],
    },
    entry_points={"console_scripts": ["rserve = rserve.cli:main"]},
)

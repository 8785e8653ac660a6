import os

import pytest

from gllm.multimodal.errors import BadInput
from gllm.multimodal.local_file import read_local_file


@pytest.fixture
def folders(tmp_path):
    allowed, outside = tmp_path / "allowed", tmp_path / "allowed-not"
    for folder in (allowed, outside):
        folder.mkdir()
        (folder / "a b.png").write_bytes(b"content of " + folder.name.encode())
    (allowed / "sub").mkdir()
    (allowed / "out.png").symlink_to(outside / "a b.png")
    (allowed / "in.png").symlink_to(allowed / "a b.png")
    (allowed / "sub" / "up").symlink_to(outside)
    return allowed, outside


@pytest.mark.parametrize("path", ["a%20b.png", "in.png", "sub/../a%20b.png"])
@pytest.mark.parametrize("host", ["", "localhost"])
def test_files_below_the_folder_are_read(folders, path, host):
    allowed, _ = folders
    assert read_local_file(f"file://{host}{allowed}/{path}", str(allowed), 100) == b"content of allowed"


@pytest.mark.parametrize(
    "path",
    [
        "../allowed-not/a b.png",
        "..%2fallowed-not%2fa%20b.png",
        "out.png",
        "sub/up/a b.png",
        "",
        "sub",
        "missing.png",
        "a%00b",
    ],
)
def test_files_outside_links_to_them_and_missing_files_get_one_answer(folders, path):
    allowed, _ = folders
    with pytest.raises(BadInput, match="not a readable file below the folder"):
        read_local_file(f"file://{allowed}/{path}", str(allowed), 100)


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "file://host/etc/passwd", "file:relative", "file:", "file://[x/a", "file:///%ff"],
)
def test_other_urls_are_refused(folders, url):
    with pytest.raises(BadInput, match="not a readable file"):
        read_local_file(url, str(folders[0]), 100)


def test_files_are_off_by_default(folders):
    with pytest.raises(BadInput, match="--allowed-media-path"):
        read_local_file(f"file://{folders[0]}/in.png", None, 100)


def test_a_pipe_is_refused_and_not_waited_for(folders):
    os.mkfifo(folders[0] / "pipe")
    with pytest.raises(BadInput, match="not a readable file"):
        read_local_file(f"file://{folders[0]}/pipe", str(folders[0]), 100)


def test_the_size_limit_is_exact(folders):
    url = f"file://{folders[0]}/in.png"
    assert len(read_local_file(url, str(folders[0]), 18)) == 18
    with pytest.raises(BadInput, match="18 bytes, above the limit of 17"):
        read_local_file(url, str(folders[0]), 17)

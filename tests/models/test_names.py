import pytest

from gllm.models.names import PACKAGED, UnknownModelError, resolve_model
from gllm.models.shape_file import read_shape


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_name_is_a_folder_with_a_readable_config(name):
    assert read_shape(resolve_model(name)).vision is not None


def test_a_folder_with_a_config_is_itself_even_if_it_is_called_tiny(tmp_path, monkeypatch):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("tiny").resolve() == tmp_path / "tiny"
    assert resolve_model(str(tmp_path / "tiny")) == tmp_path / "tiny"


def test_what_is_neither_is_refused_with_what_would_be_accepted(tmp_path):
    with pytest.raises(UnknownModelError, match="tiny, small, small-vision"):
        resolve_model("Qwen/Qwen2.5-VL-3B-Instruct")
    with pytest.raises(UnknownModelError, match=r"no config\.json"):
        resolve_model(str(tmp_path))

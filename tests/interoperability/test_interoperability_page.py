import pathlib
import re

import marian_folders
import published_models
import pytest

from keras_transformer import load_pretrained

pytestmark = [pytest.mark.once("torch"), pytest.mark.slow]

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "interoperability.md"


@pytest.mark.filterwarnings("ignore:.* (texts|outputs) differ from those of `generate`")
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    marian_folders.trained_model(pathlib.Path("Helsinki-NLP/opus-mt-en-de"))
    published_models.write_folder("llama 2", pathlib.Path("HuggingFaceTB/SmolLM2-135M"))
    pathlib.Path("train.en").write_text("\n".join(marian_folders.SOURCES))
    pathlib.Path("train.de").write_text("\n".join(marian_folders.TARGETS))
    namespace = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(blocks) > 4
    for code in blocks:
        exec(compile(code, "interoperability.md", "exec"), namespace)
    printed = capsys.readouterr().out.splitlines()
    assert "['ein Mann sieht zwei Hunde']" in printed[1:-1]
    assert printed[-1] == "['ein Mann sieht zwei Hunde']"
    assert load_pretrained("my-smollm2").num_layers == 2
    assert namespace["best"] == ["zwei Männer"]
    assert load_pretrained("my-opus-mt-en-de").hidden_dim == 18

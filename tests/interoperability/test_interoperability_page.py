import pathlib
import re

import marian_folders
import pytest

from keras_transformer import load_pretrained

pytestmark = [pytest.mark.once("torch"), pytest.mark.slow]

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "interoperability.md"


@pytest.mark.filterwarnings("ignore:.* (texts|outputs) differ from those of `generate`")
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    marian_folders.trained_model(pathlib.Path("Helsinki-NLP/opus-mt-en-de"))
    pathlib.Path("train.en").write_text("\n".join(marian_folders.SOURCES))
    pathlib.Path("train.de").write_text("\n".join(marian_folders.TARGETS))
    namespace = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(blocks) > 4
    for code in blocks:
        exec(compile(code, "interoperability.md", "exec"), namespace)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "['ein Mann sieht zwei Hunde']" == printed[-1]
    assert namespace["best"] == ["zwei Männer"]
    assert load_pretrained("my-opus-mt-en-de").hidden_dim == 18

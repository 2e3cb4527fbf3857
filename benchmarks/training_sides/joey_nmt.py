"""JoeyNMT's model and loss, which also counts correct tokens.

The package requires an older protobuf than TensorFlow, but works with a newer one:
`pip install --no-deps joeynmt subword-nmt tensorboard`.
"""

from types import SimpleNamespace

import torch
from joeynmt.model import build_model
from joeynmt.vocabulary import Vocabulary

from training_sides.setting import Setting, Train
from training_sides.torch_loop import loop


def build(setting: Setting) -> Train:
    special = SimpleNamespace(
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        sep_token=None,
        unk_id=0,
        pad_id=1,
        bos_id=2,
        eos_id=3,
        lang_tags=[],
    )
    vocabulary = Vocabulary(list(map(str, range(4, setting.vocabulary_size))), special)
    size = setting.dimensions
    stack = {
        "type": "transformer",
        "num_layers": size["num_layers"],
        "num_heads": size["num_heads"],
        "hidden_size": size["hidden_dim"],
        "ff_size": size["intermediate_dim"],
        "dropout": setting.dropout,
        "layer_norm": "pre",
        "embeddings": {"embedding_dim": size["hidden_dim"], "scale": True},
    }
    config = {"encoder": stack, "decoder": stack}
    config |= {"tied_embeddings": True, "tied_softmax": True}
    model = build_model(config, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", setting.label_smoothing)

    def loss_of(*token_ids: torch.Tensor) -> torch.Tensor:
        # In JoeyNMT, padding has id 1 and unknown words have id 0.
        sources, inputs, targets = (ids + (ids == 0).int() for ids in token_ids)
        loss, *_ = model(
            return_type="loss",
            src=sources,
            src_length=(sources != 1).sum(1),
            src_mask=(sources != 1)[:, None],
            trg_input=inputs,
            trg=targets,
            trg_mask=(targets != 1)[:, None],
        )
        return loss / (targets != 1).sum()

    return loop(loss_of, model)

"""The loop of the Keras tutorials: greedy, with the whole model for each token."""

import numpy as np

from decoding_sides.setting import START, Decode, Setting, padded_batches


def build(setting: Setting) -> Decode:
    from training_sides.keras_hub import functional_model
    from training_sides.setting import Setting as TrainingSetting

    model = functional_model(TrainingSetting(setting.size, 0.0, 0))
    rows = setting.rows

    def decode(chosen: list[int], batch_size: int) -> None:
        for batch in padded_batches(rows, chosen, batch_size):
            token_ids = np.zeros((len(batch), setting.length + 1), "int32")
            token_ids[:, 0] = START
            for index in range(setting.length):
                inputs = {
                    "encoder_token_ids": batch,
                    "decoder_token_ids": token_ids[:, :-1],
                }
                logits = model.predict_on_batch(inputs)
                token_ids[:, index + 1] = logits[:, index].argmax(axis=-1)

    return decode

"""CTranslate2 with the exported model; on a GPU it converts the weights."""

import os

from training_sides.devices import gpu_name

from decoding_sides.setting import Decode, Setting


def build(setting: Setting, form: str) -> Decode:
    import ctranslate2

    if gpu_name() is None:
        cores = len(os.sched_getaffinity(0))
        translator = ctranslate2.Translator(setting.path(form), intra_threads=cores)
    else:
        translator = ctranslate2.Translator(
            setting.path("float32"), device="cuda", compute_type=form
        )
    vocabulary = setting.vocabulary
    tokens = [[vocabulary[i] for i in row[:-1]] for row in setting.rows]

    def decode(chosen: list[int], batch_size: int) -> None:
        results = translator.translate_batch(
            [tokens[number] for number in chosen],
            beam_size=setting.num_beams,
            length_penalty=0.6 if setting.num_beams > 1 else 0,
            min_decoding_length=setting.length,
            max_decoding_length=setting.length,
            max_batch_size=batch_size,
        )
        # `max_decoding_length` does not count the end token.
        assert all(len(result.hypotheses[0]) == setting.length for result in results)

    return decode

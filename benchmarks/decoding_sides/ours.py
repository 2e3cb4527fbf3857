"""`Seq2Seq.generate` with default arguments and a forced length."""

from typing import Any

from decoding_sides.setting import Decode, Setting


def make_search(num_beams: int) -> Any:
    import keras_transformer as kt

    return kt.GreedySearch() if num_beams == 1 else kt.BeamSearch(num_beams)


def build(setting: Setting) -> Decode:
    import keras
    from training_sides.devices import allow_tf32

    import keras_transformer as kt  # noqa: F401 (registers the classes)

    if keras.backend.backend() == "torch":
        allow_tf32()

    model = keras.saving.load_model(setting.path("model.keras"), compile=False)
    rows, search = setting.rows, make_search(setting.num_beams)

    def decode(chosen: list[int], batch_size: int) -> None:
        result = model.generate(
            [rows[number] for number in chosen],
            search,
            setting.length,
            batch_size,
            min_length=setting.length,
        )
        assert (result.lengths == setting.length).all()

    return decode

"""The exported SavedModel, which takes and returns texts."""

from decoding_sides.setting import Decode, Setting


def build(setting: Setting) -> Decode:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (its operations)

    name = f"saved_model-{setting.num_beams}"
    serve = tf.saved_model.load(setting.path(name)).signatures["serving_default"]
    rows, texts = setting.rows, setting.texts

    def decode(chosen: list[int], batch_size: int) -> None:
        ordered = sorted(chosen, key=lambda number: len(rows[number]))
        for start in range(0, len(ordered), batch_size):
            batch = [texts[number] for number in ordered[start : start + batch_size]]
            serve(text=tf.constant(batch))["text"].numpy()

    return decode

"""Transcribes spoken digits, such as "seven three one".

The sources of this `Seq2Seq` are sounds: frames of 16 milliseconds with 32 numbers, the
loudness of bands of frequencies. Its `source_embedding`, two convolutions, makes one
position of four frames. It takes 2 minutes on two cores:

    python examples/speech.py

This is a toy: the program eSpeak NG (licence: GPL 3) speaks, in 24 voices with random
speed and pitch. Real voices differ much more. Six voices are not trained on; the error
rate is that of their sentences.
"""

import argparse
import ctypes
from collections.abc import Sequence
from typing import Any

import espeakng_loader
import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.evaluation import token_error_rate

DIGITS = (
    *("zero", "one", "two", "three", "four"),
    *("five", "six", "seven", "eight", "nine"),
)
ACCENTS = ("en-us", "en", "en-gb-scotland")
KINDS = ("m1", "m2", "m3", "m4", "f1", "f2", "f3", "f4")
VOICES = tuple(f"{accent}+{kind}" for accent in ACCENTS for kind in KINDS)
TEST_VOICES = VOICES[3::4]
FRAMES, BANDS = 160, 32  # the rest of a longer sound is cut off
RATE, HOP, WINDOW = 22_050, 352, 704  # samples: a second, between frames, of a frame
WIDTH, INT = 96, ctypes.c_int


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the error rate in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    random = np.random.default_rng(options.seed)
    voices = [voice for voice in VOICES if voice not in TEST_VOICES]
    sounds, texts = speak(voices, options.sentences, random)
    test_sounds, correct = speak(TEST_VOICES, 600, random)
    print(f"{len(texts):,} training sentences, {len(correct)} test sentences")

    tokenizer = kt.WordTokenizer.train(lines=texts)
    rows = tokenizer.tokenize(texts, add_start=True, add_end=True)
    ids = rows.to_tensor().numpy()
    model = build_model(tokenizer)
    updates = options.epochs * -(-len(texts) // 64)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=2e-3, warmup_steps=updates // 10
    )
    model.compile(keras.optimizers.AdamW(schedule), kt.LabelSmoothedCrossEntropy(0.1))
    data: Any = {"encoder_token_ids": sounds, "decoder_token_ids": ids[:, :-1]}
    model.fit(
        data,
        ids[:, 1:],
        batch_size=64,
        epochs=options.epochs,
        callbacks=[kt.TrainingProgress()],
    )

    written = model.generate(test_sounds, kt.GreedySearch(), max_length=8)
    for right, text in list(zip(correct, written, strict=True))[:5]:
        print(f"  {right} → {text}")
    rate = 100 * token_error_rate(written, correct)
    print(f"digit error rate: {rate:.2f} %")
    return rate


def speak(
    voices: Sequence[str], number: int, random: np.random.Generator
) -> tuple[np.ndarray, list[str]]:
    """Returns frames `(number, FRAMES, BANDS)`, and texts of two to five digits."""
    espeak = ctypes.CDLL(espeakng_loader.get_library_path())
    data = espeakng_loader.get_data_path().encode()
    assert espeak.espeak_Initialize(2, 0, data, 0) == RATE  # 2: sound is not played
    samples: list[np.ndarray] = []

    @ctypes.CFUNCTYPE(INT, ctypes.POINTER(ctypes.c_short), INT, ctypes.c_void_p)
    def receive(values: Any, count: int, _: Any) -> int:
        if values and count:
            samples.append(np.ctypeslib.as_array(values, (count,)).copy())
        return 0

    espeak.espeak_SetSynthCallback(receive)
    frames, texts = np.zeros((number, FRAMES, BANDS), "float32"), []
    for row in frames:
        texts.append(" ".join(random.choice(DIGITS, random.integers(2, 6))))
        espeak.espeak_SetVoiceByName(str(random.choice(voices)).encode())
        espeak.espeak_SetParameter(1, int(random.integers(130, 220)), 0)  # speed
        espeak.espeak_SetParameter(3, int(random.integers(20, 80)), 0)  # pitch
        text = texts[-1].encode() + b"\0"
        samples.clear()
        espeak.espeak_Synth(text, len(text), 0, 0, 0, 1, None, None)
        found = to_frames(np.concatenate(samples) / 2**15)[:FRAMES]
        row[: len(found)] = found
    return frames, texts


def to_frames(sound: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the energy in bands of the mel scale, 0 for silence."""
    starts = range(0, len(sound) - WINDOW, HOP)
    windows = np.stack([sound[i : i + WINDOW] for i in starts]) * np.hanning(WINDOW)
    energy = np.abs(np.fft.rfft(windows)) ** 2
    mel = np.linspace(0, 2595 * np.log10(1 + 8000 / 700), BANDS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1) * WINDOW / RATE
    bins = np.arange(energy.shape[1])[:, None]
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.log1p(100 * energy @ np.maximum(0, np.minimum(rise, fall))) / 4


def build_model(tokenizer: kt.WordTokenizer) -> kt.Seq2Seq:
    """Builds a model of frames `(batch, FRAMES, BANDS)` to texts."""
    convolution = {"strides": 2, "padding": "same", "activation": "gelu"}
    embedding = keras.Sequential()
    embedding.add(keras.Input((FRAMES, BANDS)))
    embedding.add(keras.layers.Conv1D(WIDTH, 3, **convolution))
    embedding.add(keras.layers.Conv1D(WIDTH, 3, **convolution))
    embedding.add(kt.LearnedPositionalEncoding(FRAMES // 4))
    return kt.Seq2Seq(
        num_layers=2,
        hidden_dim=WIDTH,
        intermediate_dim=2 * WIDTH,
        num_heads=4,
        target_tokenizer=tokenizer,
        source_embedding=embedding,
    )


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--epochs", type=int, default=10, help="number of epochs")
    parser.add_argument("--sentences", type=int, default=6000, help="to train on")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

"""The tutorial of this library: `examples/tutorials/translation.py`."""

import keras
from tutorial_sides.task import PRESET, Task, Trained

import keras_transformer as kt


def train(task: Task) -> Trained:
    tokenizer = kt.SentencePieceTokenizer.train(
        list(task.train), vocabulary_size=task.vocabulary_size
    )
    tokenizers = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    train = kt.parallel_dataset(*task.train, **tokenizers)
    valid = kt.parallel_dataset(*task.valid, shuffle=False, **tokenizers)
    model = kt.Seq2Seq.from_preset(PRESET, dropout=0.3, **tokenizers)
    schedule = kt.WarmupInverseSquareRoot(peak_learning_rate=4e-3, warmup_steps=2000)
    model.compile(
        keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        kt.LabelSmoothedCrossEntropy(),
        metrics=[kt.MaskedTokenAccuracy(), kt.Perplexity()],
    )
    checkpoints = kt.Checkpoints(task.checkpoints, data=train, monitor="val_loss")
    history = model.fit(
        train.dataset,
        validation_data=valid.dataset,
        epochs=task.epochs,
        shuffle=False,
        callbacks=[checkpoints, *task.callbacks],
        verbose=0,
    )
    epochs = len(history.epoch)
    kt.average_checkpoints(model, task.checkpoints, last=min(10, epochs))

    def translate(sources: list[str]) -> list[str]:
        return model.generate(sources, kt.BeamSearch(num_beams=5))

    return Trained(model, train.dataset, translate)

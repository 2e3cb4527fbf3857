"""Training on several replicas and in several processes."""

import keras
import pytest
from child_process import figures_of

import keras_transformer as kt
from keras_transformer.backend import distribution


def compiled():
    model = kt.Seq2Seq(
        num_layers=1,
        hidden_dim=4,
        intermediate_dim=4,
        num_heads=1,
        vocabulary_size=11,
    )
    model.compile("sgd", kt.LabelSmoothedCrossEntropy())
    return model


@pytest.fixture(scope="module")
def figures():
    return figures_of("replicas.py")


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("name", ["loss", "uneven", "r_drop_micro_batches"])
def test_two_replicas_train_as_one_device(figures, name):
    weights, logs = figures[name]
    assert weights < 1e-5
    assert logs < 1e-4


@pytest.mark.slow
@pytest.mark.once
def test_two_replicas_evaluate_as_one_device(figures):
    one, two = figures["evaluate"]
    assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.slow
@pytest.mark.once
def test_a_batch_is_predicted_once(figures):
    assert figures["predicted"] == [21, 21]


@pytest.mark.slow
@pytest.mark.once
def test_an_update_is_skipped_on_both_replicas(figures):
    assert figures["steps"] == [2, 2]
    assert figures["skip"] < 1e-5


@pytest.mark.slow
@pytest.mark.once
def test_checkpoints_resume_on_replicas(figures):
    assert figures["resumed_steps"] == 6
    assert figures["resumed"] < 1e-6


@pytest.mark.once
@pytest.mark.parametrize(
    "name", ["MultiWorkerMirroredStrategy", "ParameterServerStrategyV2"]
)
def test_strategies_that_are_refused(name):
    class Model:
        distribute_strategy = type(name, (), {})()

    with pytest.raises(ValueError, match=name.removesuffix("V2")):
        distribution.check_distribution(Model())


@pytest.mark.once
def test_clipping_of_each_replica_is_refused():
    class Model:
        compiled = True
        optimizer = kt.SkipNonFinite(keras.optimizers.SGD(0.5, global_clipnorm=1.0))

        class distribute_strategy:
            num_replicas_in_sync = 2

    with pytest.raises(ValueError, match="`global_clipnorm` must be None"):
        distribution.check_distribution(Model())


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("devices", "has 2 (/device:CPU:0, /device:CPU:1); received `devices=5`"),
        ("model", "`model` must be created within the `distribute`"),
        ("optimizer", "`optimizer` must be created within the `distribute`"),
        ("batch_size", "`batch_size` must be a multiple of the number of devices"),
        ("few_rows", "received batches of 5 rows"),
        (
            "first_batch",
            "The first batch must have a number of rows that is a",
        ),
        ("accumulation", "`gradient_accumulation_steps` must be None under a"),
        ("model_parallel", "`model_parallel` above 1 must be used on JAX"),
        ("cleared", "`keras.utils.clear_session` must not be called within"),
    ],
)
def test_errors(figures, name, message):
    assert message in figures["errors"][name]


@pytest.mark.once("torch")
def test_losses_that_processes_of_torch_cannot_share(monkeypatch):
    import torch

    model = compiled()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match="`loss` must be a mean .* in 2 processes"):
            train(None, None)

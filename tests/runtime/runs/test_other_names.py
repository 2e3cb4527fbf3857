"""Names that other toolkits have for options."""

import collections

import pytest
import typer
from error_box import unwrapped
from typer.testing import CliRunner

from keras_transformer_runtime.command import COMMANDS, make_app
from keras_transformer_runtime.runs.option_checks import check_values
from keras_transformer_runtime.runs.other_names import OF_DECODING, OF_TRAIN
from keras_transformer_runtime.runs.recipe import Recipe, read_options

pytestmark = pytest.mark.once("torch")

OPTIONS = {
    name: {
        parameter.name
        for parameter in command.params
        if parameter.param_type_name == "option"
    }
    for name, command in typer.main.get_command(make_app()).commands.items()
}


def outcome(command, *arguments):
    result = CliRunner().invoke(make_app(), [command, *arguments])
    assert result.exit_code == 2
    return unwrapped(result.output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--batch-size", "32"],
            "No such option: --batch-size. Here it is --tokens-per-batch: number of "
            "source or target tokens in a batch, padding included. Its size is in",
        ),
        (["--batch_size=32"], "option: --batch_size. Here it is --tokens-per-batch: "),
        (["-batch_size", "32"], "option: -batch_size. Here it is --tokens-per-batch: "),
        (["--lr", "1"], "--lr. Here it is --learning-rate: peak learning rate, reach"),
        (
            ["--max-steps", "9"],
            "--max-steps. Here it is --steps: number of batches aft",
        ),
        (["--fp16"], "--fp16. Here it is --dtype mixed_float16: dtype policy of train"),
        (["--num_beams", "3"], "--num_beams. Here it is --num-beams: number of beams"),
        (["--resume"], "--resume. The same command resumes a run that was stopped."),
        (["--learnin-rate", "1"], "(Possible options: --learning-rate)"),
    ],
)
def test_train(arguments, message):
    assert message in outcome("train", *arguments)


@pytest.mark.parametrize(
    ("command", "name", "message"),
    [
        ("translate", "--beam-size", "Here it is --num-beams: number of beams."),
        ("translate", "--n_best", "Here it is --num-hypotheses: "),
        ("translate", "-beam_size", "option: -beam_size. Here it is --num-beams: "),
        ("translate", "--model", "The model is the first argument."),
        ("translate", "-src", "Files and folders are arguments, after the model."),
        ("generate", "--max-new-tokens", "Here it is --max-length: "),
        ("generate", "--do-sample", "Here it is --temperature 1: divisor of the log"),
        ("serve", "--workers", "Here it is --processes: "),
        ("serve", "--device", "The backend, KERAS_BACKEND, uses a GPU if there is o"),
        ("evaluate", "--beam", "Here it is --num-beams: "),
        ("export", "--quantize", "Here it is --quantization: "),
        ("export", "--num-return-sequences", "Here it is --num-hypotheses: "),
    ],
)
def test_other_commands(command, name, message):
    assert message in outcome(command, name)


@pytest.mark.parametrize(("table", "commands"), [(OF_TRAIN, 1), (OF_DECODING, 5)])
def test_the_tables_name_options_that_exist(table, commands):
    names = ["train"] if table is OF_TRAIN else [*COMMANDS.keys() - {"train"}]
    options = set().union(*(OPTIONS[name] for name in names))
    for meaning in table:
        option, _, value = meaning.option.partition(" ")
        assert option in {"", *options}, meaning
        assert option or meaning.remark
        assert not meaning.remark or meaning.remark.endswith(".")
        if value and table is OF_TRAIN:
            recipe = Recipe(train=["a.tsv"], output="a", **{option: value})
            check_values(recipe.values())


def test_each_name_has_one_meaning_and_is_no_option():
    counts = collections.Counter(n for row in OF_TRAIN for n in row.names.split())
    assert counts.total() > 300 and counts.most_common(1)[0][1] == 1
    assert not counts.keys() & {*Recipe.names(), "config"}
    for name in counts:
        assert name == name.lower() and "-" not in name


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "batch_size = 32",
            "received `batch_size`. Here it is `tokens_per_batch`: num",
        ),
        ("fp16 = true", '`fp16`. Here it is `dtype = "mixed_float16"`: dtype polic'),
        ("resume = true", "`resume`. The same command resumes a run that was stopped"),
        ("num-beams = 3", "received `num-beams`. Here it is `num_beams`: number of be"),
    ],
)
def test_a_file(tmp_path, line, message):
    path = tmp_path / "options.toml"
    path.write_text(line)
    with pytest.raises(ValueError) as error:
        read_options(path)
    assert message in str(error.value)


def test_a_percentage_in_a_file(tmp_path):
    path = tmp_path / "options.toml"
    path.write_text("valid = '2.5%'")
    with pytest.raises(ValueError, match="received `valid = '2.5%'`. Write `valid = 0"):
        read_options(path)

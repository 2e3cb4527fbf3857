import pytest

from keras_transformer.export.tensorflow_process import run_python

pytestmark = pytest.mark.once


def test_the_error_of_a_process_is_quoted():
    assert run_python("print(input())", "out of ink") == '"out of ink"\n'
    message = "child process .* end of its error output: out of ink"
    with pytest.raises(RuntimeError, match=message):
        run_python("raise SystemExit('out of ink')", {})

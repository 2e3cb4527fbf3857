import pytest

from keras_transformer.export.writing import run_python


def test_a_process_that_fails_is_quoted():
    assert run_python("print(input())", "out of ink") == '"out of ink"\n'
    with pytest.raises(RuntimeError, match="child process .* last words: out of ink"):
        run_python("raise SystemExit('out of ink')", {})

"""Processes that `test_workers.py` starts.

    python translating_workers.py WINDOWS ARGUMENT…

runs a command with small windows, and prints the ids of the processes that it has
started after each of them. After so many windows it terminates itself.
Without arguments, it starts workers without a model, prints the ids of the processes,
and kills itself.
"""

import functools
import json
import os
import signal
import sys

import psutil

from keras_transformer.backend.ray_connection import connection
from keras_transformer_runtime.command import main
from keras_transformer_runtime.commands import translate as translate_command
from keras_transformer_runtime.file_translation.unfinished_file import UnfinishedFile

WINDOW = 40


def print_started():
    started = psutil.Process().children(recursive=True)
    print(json.dumps([process.pid for process in started]), flush=True)


class Idle:
    def answer(self):
        return 5


def start_workers_and_die():
    from keras_transformer.file_translation import workers

    with connection():
        kind = workers.ray.remote(Idle).options(**workers._options(2))
        actors = [kind.remote() for _ in range(2)]
        assert workers.ray.get([actor.answer.remote() for actor in actors]) == [5, 5]
        print_started()
        os.kill(os.getpid(), signal.SIGKILL)


def translate(windows):
    done, append = [], UnfinishedFile.append

    def append_and_terminate(self, *arguments):
        append(self, *arguments)
        print_started()
        done.append(arguments)
        if len(done) == windows:
            os.kill(os.getpid(), signal.SIGTERM)

    UnfinishedFile.append = append_and_terminate
    whole = translate_command.translate_file
    translate_command.translate_file = functools.partial(whole, window=WINDOW)
    main()


if __name__ == "__main__":
    if sys.argv[1:]:
        translate(int(sys.argv.pop(1)))
    else:
        start_workers_and_die()

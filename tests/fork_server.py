"""Starts Python processes without the seconds that the import of Keras takes.

A template is a process that has imported a module and done nothing else. It forks for
each Python process that a test starts with the command of `forked_python`. A template
starts at its first use, and ends with the session of pytest, whose workers share it.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import types

# The modules and the Keras backend of each template.
TEMPLATES = {
    "saved_model": ("numpy, tensorflow, tensorflow_text", "tensorflow"),
    "tensorflow": ("keras_transformer", "tensorflow"),
    "jax": ("keras_transformer", "jax"),
    "torch": ("keras_transformer", "torch"),
}


def forked_python(template):
    """Returns a command that takes the place of `[sys.executable]`.

    It understands `-P`, `-c code`, `-m module`, and the path of a script. The process
    reads the streams and has the environment and the working folder of the command.

    Args:
        template: name of a template; its modules are imported already.

    Returns:
        List of strings.
    """
    path = os.path.join(os.environ["FORK_SERVER"], template)
    return [sys.executable, "-I", "-S", __file__, path]


def request(path, arguments):
    """Runs the command: sends it with its streams to a template, and ends as it does.

    Args:
        path: socket of the template.
        arguments: arguments of Python.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [b"*"], [0, 1, 2])
        settings = [arguments, dict(os.environ), os.getcwd()]
        connection.sendall(json.dumps(settings).encode() + b"\n")
        code = int(connection.makefile().readline())
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def serve(folder):
    """Serves the templates until the standard input ends; returns in a forked process.

    Args:
        folder: folder of the sockets, by which the server is ready when they exist.

    Returns:
        The arguments of Python in a forked process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listeners = {}
    for name in TEMPLATES:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(folder, name))
        listener.listen()
        listeners[listener] = name
    print("ready", flush=True)
    for listener in _readable(listeners):
        if not os.fork():
            modules, backend = TEMPLATES[listeners[listener]]
            os.environ.update(KERAS_BACKEND=backend)
            exec(f"import {modules}")
            gc.freeze()  # The forked processes share the memory.
            return _fork(listener)
        del listeners[listener]
    os._exit(0)


def _fork(listener):
    """Forks for each connection; returns in the forked process."""
    for _ in _readable([listener]):
        connection, _ = listener.accept()
        if not os.fork():
            _, streams, _, _ = socket.recv_fds(connection, 1, 3)
            child = os.fork()
            if not child:
                return _receive(connection, streams)
            _, status = os.waitpid(child, 0)
            with contextlib.suppress(BrokenPipeError):  # The command was stopped.
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            os._exit(0)
        connection.close()
    os._exit(0)


def _readable(listeners):
    """Yields each listener with a connection; waits for all children at the end."""
    while True:
        found, _, _ = select.select([sys.stdin, *listeners], [], [])
        if sys.stdin in found:
            break
        yield found[0]
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _receive(connection, streams):
    with connection, connection.makefile() as file:
        arguments, environment, folder = json.loads(file.readline())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Without the second reference, code that replaces the first closes the stream.
    sys.stdin = sys.__stdin__ = os.fdopen(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    return arguments


def run(arguments):
    """Runs what Python runs with the arguments.

    Args:
        arguments: arguments of Python.
    """
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    del sys.path[0]  # the folder of this file
    sys.path[:0] = [name for name in path if name and name not in sys.path]
    if arguments[0] == "-P":
        arguments = arguments[1:]
    else:
        sys.path.insert(0, "")
    option, *rest = arguments
    if option == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(rest[0], vars(sys.modules["__main__"]))
    elif option == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(option))
        runpy.run_path(option, run_name="__main__")


def end(code):
    """Ends the process without the second that it takes to free its memory.

    Args:
        code: exit code.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        arguments = serve(sys.argv[2])
        try:
            run(arguments)
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
            end(stop.code if isinstance(stop.code, int) else int(bool(stop.code)))
        except BaseException:
            traceback.print_exc()
            end(1)
        end(0)
    else:
        request(sys.argv[1], sys.argv[2:])

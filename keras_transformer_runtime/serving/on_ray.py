"""The server on Ray Serve, with replicas on several machines.

```shell
serve run keras_transformer_runtime.serving.on_ray:application config=serving.toml
```

Each replica is the server of one process: it loads all models and finds new versions
itself, so that all machines must have the folders of the models at the same paths.
Ray's options of HTTP replace `host`, `port` and those of connections, and Ray's
dashboard has the metrics of all replicas; `/metrics` has those of one. `serve build`
writes Ray's configuration file, with more options such as `autoscaling_config`.
"""

import pathlib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FilePath
from ray import serve
from ray.serve import Application
from starlette.types import ASGIApp

from keras_transformer_runtime.serving.server import (
    configure_logging,
    create_application,
)
from keras_transformer_runtime.serving.server_options import read_server_options

Count = Annotated[int, Field(ge=1)]


class Arguments(BaseModel):
    """The arguments of `application`.

    Attributes:
        config: path of the TOML file of a server.
        num_replicas: int, number of replicas; `"auto"` = Ray adapts it to the load.
        num_cpus: int, number of cores of a replica, and of the threads of its engines.
    """

    model_config = ConfigDict(extra="forbid")

    config: FilePath
    num_replicas: Count | Literal["auto"] = 1
    num_cpus: Count = 1


def application(arguments: Arguments) -> Application:
    """Returns the application of Ray Serve.

    Args:
        arguments: `Arguments`, which Ray makes of those of `serve run`, or of `args` in
            its configuration file.

    Example:

    ```python
    serve.run(application(Arguments(config="serving.toml", num_replicas=2)))
    ```
    """
    options = read_server_options(pathlib.Path(arguments.config).resolve())
    options = options.model_copy(
        update={"processes": 1, "threads": options.threads or arguments.num_cpus}
    )
    create_application(options)  # raises the errors of the options here

    def create() -> ASGIApp:
        """Returns the application of a replica."""
        configure_logging(options)
        return create_application(options, load_first=True).asgi

    # Batches are made of requests in progress; further ones wait in Ray's proxy.
    requests = max(model.max_waiting for model in options.models.values())
    deploy = serve.deployment(
        name="Server",
        num_replicas=arguments.num_replicas,
        max_ongoing_requests=requests,
        ray_actor_options={"num_cpus": arguments.num_cpus},
        graceful_shutdown_timeout_s=options.timeout_seconds,
        health_check_timeout_s=options.timeout_seconds,
    )
    bound: Application = deploy(serve.ingress(create)()).bind()
    return bound

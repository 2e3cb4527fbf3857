"""A command that answers the names of other toolkits with its own options."""

from typing import Any, ClassVar

from typer.core import TyperCommand

from keras_transformer_runtime.runs.other_names import (
    OF_DECODING,
    Meaning,
    explanation,
    find_meaning,
)


class ExplainingCommand(TyperCommand):
    """A command whose error for an unknown option names the one that does the same."""

    table: ClassVar[tuple[Meaning, ...]] = OF_DECODING

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # The parser removes the arguments that it has read.
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "possibilities") and (
                answer := self._answer(error, given)
            ):
                found: Any = error
                found.possibilities = None
                found.message = answer
            raise

    def _answer(self, error: Any, args: list[str]) -> str | None:
        """Returns the message for an option that does not exist, if it is known."""
        name = str(error.option_name)
        if not name.startswith("--"):  # of `-beam_size`, the parser names `-b`
            name = next((arg for arg in args if arg.startswith(name)), name)
            name = name.partition("=")[0]
        parameters = {p.name: p for p in self.params if p.param_type_name == "option"}
        helps = {str(n): str(getattr(p, "help", "")) for n, p in parameters.items()}
        meaning = find_meaning(name, helps, self.table)
        if meaning is None:
            return None
        option, _, value = meaning.option.partition(" ")
        typed = max(parameters[option].opts, key=len) if option else ""
        sentences = explanation(meaning, helps, f"{typed} {value}".strip())
        return f"No such option: {name}. {sentences}"

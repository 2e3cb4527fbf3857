"""How long sources and targets may be."""


def check_limit(
    limit: int | None, longest_position: int | None, name: str
) -> int | None:
    """Makes sure that there is a position for every token.

    Args:
        limit: `max_source_length` or `max_target_length`, at least 1; `None` = as
            long as the positions go.
        longest_position: `max_length` of the position scheme; `None` = no limit.
        name: name of the argument `limit`.

    Returns:
        The smaller of the two; `None` if there is no limit.

    Raises:
        ValueError: if `limit` is greater than `longest_position`.
    """
    if longest_position is not None and (limit or 0) > longest_position:
        raise ValueError(
            f"`{name}` must not be greater than `max_length` of `positions`; received "
            f"`{name}={limit}`, `max_length={longest_position}`. Give the positions a "
            "greater `max_length`."
        )
    limit = limit or longest_position
    return None if limit is None else int(limit)

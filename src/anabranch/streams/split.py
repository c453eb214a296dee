"""How features are split vertically among clients by count."""

from __future__ import annotations

from anabranch.checks import whole


def split_widths(features: int, clients: int) -> tuple[int, ...]:
    """Return widths of ``clients`` contiguous slices of ``features``, as equal as possible, the larger ones first.

    Raises :class:`~anabranch.errors.ConfigError` unless ``1 <= clients <= features``.

    >>> split_widths(784, 5)
    (157, 157, 157, 157, 156)
    """
    clients = whole("clients", clients, 1, features, f" (there are {features} features)")
    each, more = divmod(features, clients)
    return tuple(each + (m < more) for m in range(clients))

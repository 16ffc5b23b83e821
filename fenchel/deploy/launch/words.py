"""Command lines of other processes of Fenchel."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def option_words(options: Mapping[str, object]) -> list[str]:
    """Return options as words of a command line, without those that are ``None`` or ``False``.

    A collection repeats its option for each value, and an option that is ``True`` has no value.
    """
    words = []
    for option, given in options.items():
        for value in given if isinstance(given, Collection) and not isinstance(given, str) else (given,):
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                words += [option, str(value)]
    return words

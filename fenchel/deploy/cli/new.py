"""Command ``fenchel new``: a folder with a working template of an algorithm."""

from __future__ import annotations

import importlib.util
import keyword
import re
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from fenchel.common.errors import SettingsError
from fenchel.common.settings.registry import names

_MODULE, _CLASS, _SUFFIX = "my_algorithm", "MyAlgorithm", ".template"
_WORDS = re.compile(f"{_MODULE}|{_CLASS}")
# Names that are valid both as a Python identifier and as a run's name.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the folder and of the Python module in it")],
) -> None:
    """Make a folder with a working template of an algorithm: both halves, settings and a test."""
    meant = {_MODULE: name, _CLASS: _class_name(name)}
    folder = Path(name)
    try:
        folder.mkdir()
        for template in (resources.files("fenchel") / "deploy" / "cli" / "template").iterdir():
            if template.name.endswith(_SUFFIX):
                # One pass, as the new name may itself contain a word that is replaced.
                text = _WORDS.sub(lambda found: meant[found[0]], template.read_text(encoding="utf-8"))
                file = template.name.removesuffix(_SUFFIX).replace(_MODULE, name)
                (folder / file).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise SettingsError("the folder exists already; give another name", source=folder) from None
    except OSError as error:
        raise SettingsError(
            f"the folder cannot be written ({error.strerror}); make room on the disk, or work in another folder",
            source=folder,
        ) from None
    print(f"{folder}/ has {name}.py, settings.yaml, a test and README.md. Try it:\n")  # noqa: T201
    print(f"  cd {folder}\n  fenchel up settings.yaml")  # noqa: T201


def _class_name(module: str) -> str:
    """Return the class name for a module, after a check of the module's name."""
    found = "".join(part[:1].upper() + part[1:] for part in module.split("_"))
    if not _NAME.fullmatch(module) or keyword.iskeyword(module) or keyword.iskeyword(found):
        raise SettingsError(
            "not a valid name of a Python module; use at most 64 letters, digits and underscores, such as my_method",
            key=module,
        )
    if module in names():
        raise SettingsError(
            "Fenchel has an algorithm of this name, which settings would select; choose another name", key=module
        )
    if not Path(module).exists() and importlib.util.find_spec(module) is not None:
        raise SettingsError(
            "an installed module has this name and would be imported instead; choose another name", key=module
        )
    return found

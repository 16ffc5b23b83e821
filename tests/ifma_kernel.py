"""The compiled kernel of the backend ``ifma``, for tests on any processor."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from fenchel.common.crypto.residues import ifma

KINDS = ("emulated", "instructions")
_SOURCE = Path(ifma.__file__).with_name("_ifma.c")
_WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    "-Wframe-larger-than=16384",
)
# Of the casts that Python's own tables of functions need.
_UNFOUNDED = ("-Wno-cast-function-type",)


@cache
def compiled(kind: str) -> ModuleType:
    """Return the kernel, of plain C (``emulated``) or of the processor's instructions; skip where it cannot be had."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"_ifma{sysconfig.get_config_var('EXT_SUFFIX')}"
        defined = ("-DFENCHEL_EMULATED",) if kind == "emulated" else ()
        include = f"-I{sysconfig.get_path('include')}"
        words = ["-O3", "-shared", "-fPIC", *_WARNINGS, *_UNFOUNDED, include, *defined, str(_SOURCE), "-o", str(made)]
        subprocess.run([compiler, *words], check=True)
        spec = importlib.util.spec_from_file_location("_ifma", made)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    if not module.is_available():
        pytest.skip("this processor has no AVX-512 IFMA")
    return module


@contextmanager
def in_use(kind: str) -> Iterator[None]:
    """Have the backend compute by a kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ifma, "_ifma", compiled(kind))
        ifma._modulo.cache_clear()
        yield
    ifma._modulo.cache_clear()

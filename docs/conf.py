"""Settings of Sphinx, which makes the site of these pages (``make site``)."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

project = "Fenchel"
author = "The Fenchel developers"
version = release = metadata.version("fenchel")

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinxcontrib.katex",
    "sphinxcontrib.mermaid",
    "sphinxcontrib.typer",
]
root_doc = "index"
nitpicky = True
nitpick_ignore_regex = [("py:class", r"(?!fenchel\.[A-Z]).*")]  # types in signatures, but the public ones

# Pages
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
nb_execution_mode = "off"  # `make notebooks` executes them; what they print is part of them

# Reference
autosummary_generate = True
autodoc_mock_imports = ["torch"]  # several hundred MB, of which no page needs any
autodoc_type_aliases = {
    name: name
    for name in ("Array", "Dense", "DTypeLike", "Expected", "Indices", "Matrix", "Sampler", "Value", "Values", "Vector")
}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
# What scikit-learn and pydantic make.
autodoc_default_options = {"exclude-members": "model_config, set_fit_request, set_score_request"}
numpydoc_show_class_members = False  # each class has its page
templates_path = ["_templates"]

# Appearance
html_theme = "pydata_sphinx_theme"
html_title = "Fenchel"
html_static_path = ["_static", "../third_party/site/static"]
html_extra_path = ["../build/gallery"]
html_css_files = ["site.css"]
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
html_show_sourcelink = False
katex_css_path = "katex/katex.min.css"
mermaid_use_local = "mermaid/mermaid.esm.min.mjs"
mermaid_fullscreen = False
mermaid_dark_theme = "default"  # whose colours the theme of the pages inverts


def setup(app: Any) -> None:
    """Mend links that leave this folder, and the names of type aliases in signatures."""

    def lead_to_included_pages(app: Any, name: str, text: list[str]) -> None:
        text[0] = text[0].replace("../benchmarks/RESULTS.md", "benchmarks.md")

    def name_aliases(app: Any, what: str, name: str, value: Any, options: Any, *given: str | None) -> tuple[Any, ...]:
        return tuple(each and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", each) for each in given)

    app.connect("source-read", lead_to_included_pages)
    app.connect("autodoc-process-signature", name_aliases)

"""How Sphinx builds the site, from the top of the repository: ``nox -s docs``."""

project = "mm"
author = "The mm contributors"
copyright = author
extensions = ["myst_parser"]
root_doc = "docs/index"
# The packages' own pages are a part of the site, so that links to them work there too.
include_patterns = ["docs/**", "packages/*/README.md", "packages/*/CHANGELOG.md"]
exclude_patterns = [".*", "dist", "integration_tests", "packages/*/src", "packages/*/tests"]
myst_heading_anchors = 3
html_theme = "furo"

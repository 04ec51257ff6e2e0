#!/usr/bin/env bash
# Builds the documentation site in runs/site, and fails on any warning, such as a broken link.
# With `serve` it is served and rebuilt whenever a page changes:  scripts/docs.sh serve
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh" "[test,docs]"

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = serve ]; then exec mkdocs serve --config-file scripts/docs/mkdocs.yml; fi
mkdocs build --quiet --strict --config-file scripts/docs/mkdocs.yml
echo "runs/site/index.html"

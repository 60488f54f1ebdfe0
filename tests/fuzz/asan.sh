#!/usr/bin/env bash
# The decoders' fuzz with a build that AddressSanitizer watches: asan.sh PYTHON [arguments of run.py]
# Every allocation is then one of its own, so that a step beyond any buffer is seen; the first one ends the run.
set -euo pipefail
python=$1
shift
library=$(cc -print-file-name=libasan.so 2>/dev/null || true)
if [[ $library != /* ]]; then
    echo "make fuzz-asan needs a C compiler with AddressSanitizer (Debian: apt install gcc); none was found" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree"
cp -r "$here"/{pyproject.toml,setup.py,README.md,LICENSE,src} "$work/tree"
find "$work/tree" -name '*.so' -delete
PIP_CONSTRAINT=$here/constraints.txt PIP_BUILD_CONSTRAINT=$here/constraints.txt CDCFLOW_SANITIZE=address \
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$work/site" "$work/tree"
for module in {postgres/compiled/decode,mysql/compiled/rows,mysql/compiled/frames,privacy/compiled/openssl,rows/compiled/json_paths}; do
    grep -q __asan <(nm -D "$work/site/cdcflow/sources/$module".*.so) || {
        echo "$module was not built with AddressSanitizer" >&2
        exit 2
    }
done
# Arrow takes memory from the system, too, so that its buffers are watched as far as they are padded.
export PYTHONPATH=$work/site:$here PYTHONMALLOC=malloc ARROW_DEFAULT_MEMORY_POOL=system LD_PRELOAD=$library
# Python itself does not free all at its end, so what leaks is looked for elsewhere.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:exitcode=99
"$python" "$here/tests/fuzz/run.py" "$@"
"$python" "$here/tests/fuzz/run_mysql.py" "$@"
"$python" "$here/tests/fuzz/run_kernels.py" "$@"
echo "AddressSanitizer saw no access outside of a buffer"

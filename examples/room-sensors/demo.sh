#!/bin/sh
# The whole of it on this machine: sh demo.sh [folder [rows]]
here=$(cd "$(dirname "$0")" && pwd)
PYTHONPATH=$here/..${PYTHONPATH:+:$PYTHONPATH} exec python "$here/run.py" "$@"

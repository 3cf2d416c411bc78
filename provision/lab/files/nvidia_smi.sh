#!/bin/sh
# SIMULATED nvidia-smi. Answers about a healthy machine are cached until the file of the machine or this file changes;
# all other calls run the Python program below. Nodes are probed often, and starting Python would be a large part of
# the cost.
folder=/run/provision-lab machine=${PROVISION_LAB_MACHINE_FILE:-/etc/provision-lab/machine.json} words=$*
cached=
case $words in
  *timestamp*|*utilization*) ;;
  --query-gpu=*|--query-remapped-rows=*|'nvlink --status'|'topo -m'|'conf-compute -f') cached=$folder/${1%%[= ]*}.${#words};;
esac
if [ -n "$cached" ] && [ ! -e "${machine%/*}/faults.json" ] && [ ! -e "${machine%/*}/modes.json" ]; then
  stamp=$(stat --printf '%i.%.9Z-' "$0" "$machine" /etc/machine-id 2>/dev/null) || cached=
  if [ -n "$cached" ] && [ -r "$cached" ]; then
    { read -r before && read -r asked && read -r notice && [ "$before" = "$stamp" ] && [ "$asked" = "$words" ] &&
      cat && echo "$notice" >&2 && exit 0; } <"$cached"
  fi
  export PROVISION_LAB_KEEP="$cached" PROVISION_LAB_STAMP="$stamp"
fi
exec /usr/bin/python3 -ISc 'import sys
program = sys.argv.pop(1)
with open(program, encoding="utf-8") as stream:
    exec(compile("#" + stream.read().split("\n#!", 1)[1], program, "exec"))' "$0" "$@"

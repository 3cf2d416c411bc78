#!/bin/sh
# SIMULATED nvidia-smi. What it has said of a healthy machine, it says again while the machine's file and this one are
# the same; for all else it is the Python program below. Nodes are looked at again and again, and Python's start would be
# a large part of what that costs them.
folder=/run/provision-lab machine=${PROVISION_LAB_MACHINE_FILE:-/etc/provision-lab/machine.json} words=$*
kept=
case $words in
  *timestamp*|*utilization*) ;;
  --query-gpu=*|--query-remapped-rows=*|'nvlink --status'|'topo -m') kept=$folder/${1%%[= ]*}.${#words};;
esac
if [ -n "$kept" ] && [ ! -e "${machine%/*}/faults.json" ]; then
  stamp=$(stat --printf '%i.%.9Z-' "$0" "$machine" /etc/machine-id 2>/dev/null) || kept=
  if [ -n "$kept" ] && [ -r "$kept" ]; then
    { read -r before && read -r asked && read -r notice && [ "$before" = "$stamp" ] && [ "$asked" = "$words" ] &&
      cat && echo "$notice" >&2 && exit 0; } <"$kept"
  fi
  export PROVISION_LAB_KEEP="$kept" PROVISION_LAB_STAMP="$stamp"
fi
exec /usr/bin/python3 -ISc 'import sys
program = sys.argv.pop(1)
with open(program, encoding="utf-8") as stream:
    exec(compile("#" + stream.read().split("\n#!", 1)[1], program, "exec"))' "$0" "$@"

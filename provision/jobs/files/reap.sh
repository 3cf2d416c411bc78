# End what is left of one job on this machine and say what would not go.
# The caller sets: job (id), grace (seconds to end by itself), term (1: tell the launcher to end first),
# linger (1: stay for all of grace, because a process of the job may be starting this very moment).

# Of the job is what carries its mark, what descends from that, and what was found to be so before: a child stays
# one of the job when its parent ends first. A start time beside each pid keeps a pid that is used again out of it.
known=

members() {
  {
    printf '%s\n' "$known"
    echo =known
    grep -lzxF "PROVISION_JOB=$job" /proc/[0-9]*/environ
    echo =marked
    cat /proc/[0-9]*/stat
  } 2>/dev/null | awk '
    /^=/ { part++; next }
    part == 0 { before[$1 " " $2] = 1; next }
    part == 1 { split($0, path, "/"); member[path[3]] = 1; next }
    {
      pid = $1; name = $0; sub(/^[^(]*\(/, "", name); sub(/\)[^)]*$/, "", name); gsub(/[ \n]/, "_", name)
      rest = $0; sub(/^.*\) /, "", rest); split(rest, field, " ")
      if (field[1] == "Z" || field[1] == "X") next
      parent[pid] = field[2]; start[pid] = field[20]; comm[pid] = name
      if ((pid " " field[20]) in before) member[pid] = 1
    }
    END {
      do {
        more = 0
        for (p in parent) if (!(p in member) && (parent[p] in member)) { member[p] = 1; more = 1 }
      } while (more)
      for (p in member) if (p in parent) print p, start[p], comm[p]
    }'
}

look() {
  found=$(members)
  known=$(printf '%s\n%s' "$known" "$found" | sort -u)
}

pids() {
  printf '%s\n' "$found" | awk '{ print $1 }'
}

look
if [ "$term" = 1 ] && [ -n "$found" ]; then
  launchers=$(printf '%s\n' "$found" | awk '$3 ~ /^(mpirun|mpiexec|orterun|prterun|prte)$/ { print $1 }')
  kill -TERM ${launchers:-$(pids)} 2>/dev/null
fi
tick=0
while [ -n "$found$linger" ] && [ "$tick" -lt $((grace * 5)) ]; do
  sleep 0.2
  tick=$((tick + 1))
  look
done
tick=0
while [ -n "$found" ] && [ "$tick" -lt 20 ]; do
  kill -KILL $(pids) 2>/dev/null
  sleep 0.2
  tick=$((tick + 1))
  look
done
if [ -n "$found" ]; then
  printf '%s\n' "$found" | awk '{ print $1, $3 }'
  exit 1
fi

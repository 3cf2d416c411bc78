# End what is left of one job on this machine and say what would not go.
# The caller sets: job (id), grace (seconds to end by itself), term (1: tell the launcher to end first),
# linger (1: stay for all of grace, because a process of the job may be starting this very moment).

members() {
  {
    grep -lzxF "PROVISION_JOB=$job" /proc/[0-9]*/environ
    echo =
    cat /proc/[0-9]*/stat
  } 2>/dev/null | awk '
    $0 == "=" { tree = 1; next }
    !tree { split($0, path, "/"); member[path[3]] = 1; next }
    {
      pid = $1; name = $0; sub(/^[^(]*\(/, "", name); sub(/\)[^)]*$/, "", name); gsub(/[ \n]/, "_", name)
      rest = $0; sub(/^.*\) /, "", rest); split(rest, field, " ")
      if (field[1] == "Z" || field[1] == "X") next
      parent[pid] = field[2]; comm[pid] = name
    }
    END {
      do {
        more = 0
        for (p in parent) if (!(p in member) && (parent[p] in member)) { member[p] = 1; more = 1 }
      } while (more)
      for (p in member) if (p in parent) print p, comm[p]
    }'
}

found=$(members)
if [ "$term" = 1 ] && [ -n "$found" ]; then
  launchers=$(printf '%s\n' "$found" | awk '$2 ~ /^(mpirun|mpiexec|orterun|prterun|prte)$/ { print $1 }')
  kill -TERM ${launchers:-$(printf '%s\n' "$found" | awk '{ print $1 }')} 2>/dev/null
fi
tick=0
while [ -n "$found$linger" ] && [ "$tick" -lt $((grace * 5)) ]; do
  sleep 0.2
  tick=$((tick + 1))
  found=$(members)
done
tick=0
while [ -n "$found" ] && [ "$tick" -lt 20 ]; do
  kill -KILL $(printf '%s\n' "$found" | awk '{ print $1 }') 2>/dev/null
  sleep 0.2
  tick=$((tick + 1))
  found=$(members)
done
if [ -n "$found" ]; then
  printf '%s\n' "$found"
  exit 1
fi

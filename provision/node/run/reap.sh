# End what is left of one job on this machine and say what would not go.
# The caller sets: job (id), grace (seconds to end by itself), term (1: tell the launcher to end first),
# linger (1: stay for all of grace, because a process of the job may be starting this very moment).
if command -v python3 >/dev/null 2>&1; then
  python3 -I - "$job" "$grace" "$term" "$linger" <<'PROVISION_REAP' || exit 1
@reap.py@
PROVISION_REAP
else
  # An image without Python: what carries the job's mark, and no more. The numbers come from paths of the kernel.
  marked() {
    grep -lzxF "PROVISION_JOB=$job" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3
  }
  found=$(marked)
  [ "$term" != 1 ] || [ -z "$found" ] || kill -TERM $found 2>/dev/null
  tick=0
  while [ -n "$found$linger" ] && [ "$tick" -lt $((grace * 5)) ]; do
    sleep 0.2
    tick=$((tick + 1))
    found=$(marked)
  done
  tick=0
  while [ -n "$found" ] && [ "$tick" -lt 20 ]; do
    kill -KILL $found 2>/dev/null
    sleep 0.2
    tick=$((tick + 1))
    found=$(marked)
  done
  if [ -n "$found" ]; then
    printf '%s\n' "$found"
    exit 1
  fi
fi

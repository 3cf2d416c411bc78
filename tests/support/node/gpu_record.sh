#!/bin/sh
# Records which GPUs a job has: gpu_record.sh NAME SECONDS EXIT-CODE.
# A line is NAME|BEGIN|END|GPUS AT THE BEGINNING|GPUS AT THE END. GPUs are the UUIDs that a process of provision got. Those
# of another job are the minor numbers that its cgroup allows: a device file without a driver that a job may use fails
# with another error than "not permitted".
gpus() {
  if [ -n "$NVIDIA_VISIBLE_DEVICES" ]; then
    printf '%s' "$NVIDIA_VISIBLE_DEVICES"
    return
  fi
  for path in /dev/nvidia[0-9]*; do
    (: <"$path") 2>&1 | grep -q "not permitted" || printf '%s,' "${path#/dev/nvidia}"
  done
}
begin=$(date +%s.%N)
first=$(gpus)
sleep "$2"
last=$(gpus)
printf '%s|%s|%s|%s|%s\n' "$1" "$begin" "$(date +%s.%N)" "$first" "$last" >>/var/lib/gpu-record/records
exit "$3"

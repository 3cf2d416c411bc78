#!/bin/sh
# SIMULATED nv_peer_mem: writes the checksums of the GPU driver's P2P functions for kernel $1 to nv.symvers.
set -eu
module=$(modinfo -k "$1" -F filename nvidia 2>/dev/null) || module=
if [ -z "$module" ]; then
  echo "-E- Cannot locate nvidia modules!" >&2
  exit 1
fi
case $module in
  *.xz) xz -dc "$module" >nvidia.ko ;;
  *) cp "$module" nvidia.ko ;;
esac
nm nvidia.ko | sed -n 's/^\([0-9a-f]*\) [Aa] __crc_\(nvidia_p2p_.*\)$/\1 \2/p' | while read -r sum name; do
  printf '0x%s\t%s\t%s\tEXPORT_SYMBOL\t\n' "$(echo "$sum" | tail -c 9)" "$name" nvidia
done >nv.symvers
rm -f nvidia.ko

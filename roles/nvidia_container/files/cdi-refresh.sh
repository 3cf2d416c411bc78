# Arguments: FILE check|write. Writes the toolkit's description of the GPUs to FILE when it differs; prints what it did.
set -eu
file=$1
if ! command -v nvidia-ctk >/dev/null 2>&1; then
  echo "none: nvidia-ctk is not installed"
  exit 0
fi
if systemctl cat nvidia-cdi-refresh.path >/dev/null 2>&1; then
  echo "kept by nvidia-cdi-refresh"
  exit 0
fi
if ! nvidia-ctk cdi generate --help >/dev/null 2>&1; then
  echo "none: this nvidia-ctk cannot describe GPUs"
  exit 0
fi
new=$(mktemp)
trap 'rm -f "$new"' EXIT
timeout 120 nvidia-ctk cdi generate --output="$new" >/dev/null
if cmp -s "$new" "$file"; then
  echo "$file"
elif [ "$2" = check ]; then
  echo "changed $file"
else
  mkdir -p "$(dirname "$file")"
  install -m 0644 "$new" "$file"
  echo "changed $file"
fi

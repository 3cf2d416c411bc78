# Print what a directory ($1) of a container holds: kinds, modes, link targets, checksums, and what a sync brought.
cd "$1" 2>/dev/null || exit 0
grep -F " $1/" /proc/self/mountinfo | awk '{ print "mount", $5 }'
awk -v d="$1" '$5 == d { print "mount", $5 }' /proc/self/mountinfo
echo exists
[ -f .provision-sync ] && echo marked
echo BEGIN
find . -mindepth 1 ! -path ./.provision-sync \( -type l -printf 'l 777 %l\0%P\0' -o -type d -printf 'd %m \0%P\0' \)
find . -type f ! -path ./.provision-sync -printf 'f %m \0%P\0'
printf 'sums\0'
find . -type f ! -path ./.provision-sync -print0 | xargs -0 -r sha256sum -z
printf 'mark\0'
[ -f .provision-sync ] && cat .provision-sync
exit 0

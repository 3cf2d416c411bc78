# Unpack standard input beside a directory ($1) and swap the two. The first $2 bytes are names to remove, ended by NULs.
# What is only here stays: the new directory starts as hard links to the old one, and tar replaces files, never rewrites them.
set -e
d=$1; new=$d.provision-new.$$; old=$d.provision-old.$$
trap 'rm -rf "$new"' EXIT
mkdir -p "$(dirname "$d")"
if [ -d "$d" ]; then cp -al "$d" "$new" 2>/dev/null || { rm -rf "$new"; cp -a "$d" "$new"; }; else mkdir "$new"; fi
head -c "$2" | ( cd "$new" && xargs -0 -r rm -rf -- )
tar -x -p --no-same-owner -f - -C "$new"
if [ -d "$d" ]; then mv "$d" "$old"; fi
mv "$new" "$d"
rm -rf "$old"

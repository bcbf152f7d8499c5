#!/usr/bin/env bash
# Puts llama.cpp, as Debian testing packages it, into a folder of its own, to compare with:
#
#     bench/fetch-llama.sh DIR && overdraft bench compare --peer DIR/llama-bench
#     bench/serve --peer DIR/llama-server
#
# Needs root and debootstrap (installed if missing). Nothing outside DIR is changed. The mirror is this machine's own,
# or MIRROR from the environment.
set -euo pipefail

if [ $# -ne 1 ] || [ -z "$1" ]; then
    echo "usage: bench/fetch-llama.sh DIR" >&2
    exit 2
fi
mkdir -p "$1"
dir=$(cd "$1" && pwd)
if [ "$(id -u)" -ne 0 ]; then
    echo "bench/fetch-llama.sh: debootstrap needs root; run it with sudo, or use any llama-bench you have" >&2
    exit 2
fi

if ! command -v debootstrap >/dev/null; then
    apt-get update -q && apt-get install -y -q debootstrap
fi

# The first Debian archive this machine already uses, else debootstrap's own default.
mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE) $(RELEASE)' 2>/dev/null |
    awk '$1 ~ /debian\/?$/ { print $1; exit }')}

if [ ! -x "$dir/usr/bin/llama-bench" ]; then
    if [ ! -e "$dir/etc/debian_version" ]; then
        debootstrap --variant=minbase testing "$dir" ${mirror:+"$mirror"}
    fi
    chroot "$dir" apt-get -o Acquire::Check-Valid-Until=false update -q
    chroot "$dir" apt-get install -y -q --no-install-recommends llama.cpp
fi

libraries=$(echo "$dir"/usr/lib/*-linux-gnu)
loader=$(echo "$libraries"/ld-linux*.so.*)
# Backends are found beside the program that runs, and that is the loader.
ln -sf "$libraries"/ggml/backends*/libggml-*.so "$libraries"/

# Run the programs from outside, with the libraries they were built for.
for program in llama-bench llama-server; do
    cat >"$dir/$program" <<EOF
#!/bin/sh
exec "$loader" --library-path "$libraries:$libraries/llama:$libraries/ggml" "$dir/usr/bin/$program" "\$@"
EOF
    chmod +x "$dir/$program"
done
"$dir/llama-bench" --version 2>&1 | grep -v '^load_backend' || true
echo "$dir/llama-bench"

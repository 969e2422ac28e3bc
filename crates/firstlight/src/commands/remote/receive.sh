# Writes standard input to a file. $1: the folder; $2: the file in it; $3: its SHA-256; $4: its mode.
# The file is written completely or not at all, and an existing file is not overwritten.
umask 077
mkdir -p "$1" && cd "$1" && mkdir -p "$(dirname "$2")" || exit 1
part=$2.$$.part
trap 'rm -f "$part"' EXIT
cat > "$part" || exit 1
sum=$({ sha256sum "$part" 2>/dev/null || shasum -a 256 "$part"; } | cut -c 1-64)
if [ "$sum" != "$3" ]; then
    echo "$(wc -c < "$part") bytes came, of another hash" >&2
    exit 3
fi
chmod "$4" "$part" && ln "$part" "$2"

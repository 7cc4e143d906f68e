# Mounts the tmpfs of the memory class at $1 with size $2 and huge page policy $3.
# This is everything that ever runs privileged. Running it again changes size and policy in place;
# what the tmpfs holds stays.
target=$1
options="size=$2,huge=$3"

refuse() {
    echo "$1" >&2
    exit 1
}

if mountpoint -q "$target"; then
    [ "$(stat -f -c %T "$target")" = tmpfs ] ||
        refuse "something that is no tmpfs is mounted at memory/ below store.hostPath: unmount it, or set memory.enabled=false"
    mount -o "remount,$options" "$target" ||
        refuse "cannot change the tmpfs to $options: it may hold more than the new memory.size; delete artifacts of the memory class first"
else
    mount -t tmpfs -o "$options,mode=0750,uid=47000,gid=47000,nosuid,nodev,noexec" weightlease "$target" ||
        refuse "cannot mount a tmpfs with $options: where the kernel lacks transparent huge pages, set memory.hugePages=never"
fi

#!/bin/sh
# What `zfs` of OpenZFS 2.3.9 prints on the worker of worker.tree.
case "$*" in
list*)
    printf 'solo\t10412\tfilesystem\t1503232\n'
    printf 'solo/containerd\t881\tfilesystem\t24576\n'
    printf 'solo/containerd/1\t901\tfilesystem\t8192\n'
    ;;
'get -Hp -s local,received '*)
    printf 'solo\tcompression\tlz4\tlocal\n'
    printf 'solo/containerd\tmountpoint\t'
    printf '/var/lib/rancher/k3s/agent/containerd/io.containerd.snapshotter.v1.zfs\tlocal\n'
    ;;
get*)
    for name in solo solo/containerd; do
        printf '%s\tcasesensitivity\tsensitive\t-\n' "$name"
        printf '%s\tnormalization\tnone\t-\n' "$name"
        printf '%s\tutf8only\toff\t-\n' "$name"
        printf '%s\tencryption\toff\t-\n' "$name"
        printf '%s\tvolblocksize\t-\t-\n' "$name"
        printf '%s\tvolsize\t-\t-\n' "$name"
    done
    ;;
allow*) ;;
userspace*) printf 'POSIX User\t0\tnone\n' ;;
projectspace*) ;;
*) exit 2 ;;
esac

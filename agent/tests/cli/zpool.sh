#!/bin/sh
# What `zpool` of OpenZFS 2.3.9 prints on the worker of worker.tree.
case "$*" in
version) printf 'zfs-2.3.9-1\nzfs-kmod-2.3.9-1\n' ;;
list*) printf 'solo\t11653465990387255776\tONLINE\t125829120\t1503232\n' ;;
'status -g solo')
    printf '  pool: solo\n state: ONLINE\nconfig:\n\n'
    printf '\tNAME                   STATE     READ WRITE CKSUM\n'
    printf '\tsolo                   ONLINE       0     0     0\n'
    printf '\t  1538671061949525532  ONLINE       0     0     0\n'
    printf '\nerrors: No known data errors\n'
    ;;
get*)
    printf 'size\t125829120\t-\nguid\t11653465990387255776\t-\nashift\t12\tlocal\n'
    printf 'autotrim\ton\tlocal\nfeature@async_destroy\tenabled\tlocal\n'
    printf 'feature@edonr\tdisabled\tlocal\n'
    ;;
*) exit 2 ;;
esac

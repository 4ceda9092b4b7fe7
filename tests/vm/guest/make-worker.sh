# Runs in the guest, once per order: makes the healthy worker of a base image.
set -eux
R=/var/lib/rancher/k3s/agent/containerd
D=$R/io.containerd.snapshotter.v1.zfs
udevadm settle
zpool create -f -o ashift=12 -o autotrim=on -O compression=lz4 -O atime=off -O xattr=sa \
  -O acltype=posixacl -O mountpoint=none tank \
  /dev/disk/by-partuuid/$(lsblk -no PARTUUID /dev/disk/by-partlabel/tank)
zfs create -o mountpoint=$D tank/containerd
# The parent of a volume driver's datasets, and two volumes as it makes them.
zfs create -o mountpoint=none -o quota=100G -o dev.repave:owner=lab tank/pvc
zfs create -o mountpoint=none -o quota=1G tank/pvc/pvc-3a1f0c52-6f0e-4c1b-9b1e-2f6f7f0d9a11
zfs create -s -V 64M tank/pvc/pvc-b7d4e9a0-51c3-4d0a-8c39-6d1f0e5b7c22
systemctl enable --now k3s-agent
k image import --snapshotter zfs /opt/lab/lab.tar
k image import --snapshotter zfs /opt/lab/pause.tar
k run --rm --snapshotter zfs docker.io/library/lab:1 first | grep 'hello from layer 2'
cri run job1 docker.io/library/lab:1 | grep 'hello from layer 2'
cri up svc1 docker.io/library/lab:1 /bin/sh -c 'trap "exit 0" TERM; sleep 1000000 & wait'
cri ps | grep 'svc1 Running'
zfs list -o name,used,origin,mountpoint
sync

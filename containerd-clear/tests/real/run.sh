#!/bin/bash
# run.sh DEBS CLEAR CHECK: a real containerd loses a snapshotter's directory; without the clear
# it cannot run a container (the control), with it it can, without a pull. DEBS holds Debian's
# containerd and runc, unpacked; CLEAR is the containerd-clear binary; CHECK is check.go, built.
# Needs root. Fails on the first thing that is not as it should be.
set -eu
DEBS=$1 CLEAR=$2 CHECK=$3; HERE=$(dirname "$(realpath "$0")")
CAPTURE=$HERE/../../../survey/tests/fixtures/containerd; D=/tmp/containerd-real
export PATH=$DEBS/usr/bin:$DEBS/usr/sbin:$PATH BUSYBOX
rm -rf $D; mkdir -p $D
cat > $D/config.toml <<C
version = 2
root = "$D/root"
state = "$D/state"
disabled_plugins = ["io.containerd.grpc.v1.cri","io.containerd.cri.v1.images","io.containerd.cri.v1.runtime","io.containerd.internal.v1.opt","io.containerd.snapshotter.v1.zfs","io.containerd.snapshotter.v1.btrfs","io.containerd.snapshotter.v1.devmapper","io.containerd.snapshotter.v1.blockfile","io.containerd.nri.v1.nri"]
[grpc]
  address = "$D/c.sock"
C
C="ctr -a $D/c.sock -n k8s.io"; SN=$D/root/io.containerd.snapshotter.v1.overlayfs
DB=$D/root/io.containerd.metadata.v1.bolt/meta.db
start() { containerd --config $D/config.toml >> $D/log 2>&1 & PID=$!; until $C version >/dev/null 2>&1; do sleep 0.05; done; }
stop() { kill $PID; wait $PID 2>/dev/null || true; }
run() { $C run --rm --snapshotter overlayfs registry.example/app:1 "$1" /bin/busybox cat /etc/second; }
say() { echo "$(basename $DEBS): $*"; }
trap 'kill $PID 2>/dev/null || true' EXIT

python3 $CAPTURE/mkoci.py $D/app.tar registry.example/app:1 busybox
python3 $CAPTURE/mkoci.py $D/pause.tar registry.example/pause:3 pause
say "$(containerd --version)"
start
$C images import --snapshotter overlayfs $D/app.tar > /dev/null
$C images import --snapshotter overlayfs $D/pause.tar > /dev/null
$C containers create --snapshotter overlayfs registry.example/app:1 stale
say "runs before: $(run one)"
$C content ls -q | sort > $D/content.before

refusal=$($CLEAR clear --root $D/root --snapshotter overlayfs --keep $D/keep 2>&1) && code=0 || code=$?
[ $code = 10 ] && [[ $refusal == *"pid $PID"* ]] || { say "not refused: $code $refusal"; exit 1; }
say "refused while it runs, naming pid $PID"
$CLEAR inspect --root $D/root --snapshotter overlayfs > $D/preview
grep -q "keep k8s.io registry.example/app:1" $D/preview || { cat $D/preview; exit 1; }
stop

rm -rf $SN; cp -a $D/root $D/lost
start
run control > $D/control 2>&1 && { say "the control runs"; exit 1; }
say "the control fails: $(tail -1 $D/control | tail -c 120)"
stop
rm -rf $D/root; mv $D/lost $D/root

$CLEAR clear --root $D/root --snapshotter overlayfs --keep $D/keep
say "Go's check: $($CHECK $DB)"
start
$C content ls -q | sort | diff $D/content.before - || { say "content changed"; exit 1; }
[ "$($C images ls -q | wc -l)" = 2 ] || { say "images lost"; exit 1; }
[ -z "$($C containers ls -q)" ] || { say "a stale container stayed"; exit 1; }
say "runs after, with no pull: $(run two)"
$C snapshots --snapshotter overlayfs prepare probe > /dev/null
$C snapshots --snapshotter overlayfs rm probe
# Removing an image makes the garbage collection run.
$C images rm --sync registry.example/pause:3 > /dev/null
say "runs after garbage collection: $(run three)"
stop
if grep -E 'level=(error|fatal)' $D/log | grep -vE 'control|failed to load plugin' | grep -q .; then
  grep -E 'level=(error|fatal)' $D/log; exit 1
fi
say "Go's check after containerd wrote on: $($CHECK $DB)"
$CLEAR remove-aside --root $D/root
[ -z "$(ls -A $D | grep repave-aside || true)" ] || { say "aside stays"; exit 1; }
say ok

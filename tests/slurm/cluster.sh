#!/bin/bash
# A throw-away Slurm cluster on this machine, as root, without systemd:
#
#   cluster.sh up [NODES [CPUS]]   install what is missing, start nodes n1..nN (default 3 of 4 CPUs)
#   cluster.sh down                end its jobs and daemons, remove its files
#   cluster.sh status              its nodes and jobs
#   cluster.sh lose NODE           kill the node's slurmd and all that it runs, at once
#   cluster.sh restore NODE        start it again
#
# Everything lives in one folder (CODEDLA_SLURM_DIR, default /tmp/codedla-slurm): configuration,
# munge key and socket, logs, spool. Cluster name and ports are its own, and it does not start
# beside a slurmctld that is not its own. Clients find it by SLURM_CONF=<folder>/slurm.conf.
# Exit codes: 0 done, 77 this machine cannot (the reason is one line), 1 it failed, 2 usage.
set -euo pipefail

dir=${CODEDLA_SLURM_DIR:-/tmp/codedla-slurm}
port=${CODEDLA_SLURM_PORT:-17900} # of slurmctld; the nodes take the next ones
cluster=codedla-test
export SLURM_CONF=$dir/slurm.conf

say() { echo "cluster.sh: $*" >&2; }
cannot() {
  say "$*"
  exit 77
}

install_slurm() {
  local program missing=
  for program in slurmctld slurmd srun munged; do
    command -v "$program" >/dev/null || missing+="$program "
  done
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null || cannot "not installed: ${missing}and there is no apt-get"
  say "installing slurm-wlm and munge; missing: $missing"
  mkdir -p "$dir"
  {
    apt-get update -qq &&
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        slurm-wlm munge
  } </dev/null >"$dir/apt.log" 2>&1 || {
    missing=$(tail -n 1 "$dir/apt.log")
    rm -f "$dir/apt.log"
    rmdir "$dir" 2>/dev/null || true
    cannot "apt-get could not install slurm-wlm: $missing"
  }
}

# Another cluster's controller must not be confused by ours, nor ours taken for it.
refuse_others() {
  local pid own
  own=$(cat "$dir/slurmctld.pid" 2>/dev/null || true)
  for pid in $(pgrep -x slurmctld || true); do
    # A zombie has no program any more; not every machine's first process collects them.
    [ "$pid" = "$own" ] || [ ! -e "/proc/$pid/exe" ] || cannot "slurmctld $pid runs here already and is not ours"
  done
}

configure() {
  local nodes=$1 cpus=$2 host
  host=$(hostname -s)
  install -d -m 755 "$dir" "$dir/log" "$dir/state"
  # munged refuses a socket in a folder that others may write to.
  install -d -m 711 "$dir/munge"
  (umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
  for node in $(seq -f n%g "$nodes"); do
    install -d -m 755 "$dir/spool.$node"
    install -d -m 1777 "$dir/tmp.$node"
  done
  cat >"$SLURM_CONF" <<END
ClusterName=$cluster
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job starts when its old credential has run out: by default after two minutes. A busy
# machine needs the rest of them to start a step in.
AuthInfo=socket=$dir/munge/socket,cred_expire=60
# The cgroup plugins need systemd, or at least cgroups that a container may write to.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# Nodes may claim more CPUs than this machine has.
SlurmdParameters=config_overrides
# Whoever was lost may come back without asking.
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=5
MinJobAge=600
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
JobRequeue=1
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
# Each node its own, else the second PMIx plugin on this machine finds the first one's folder.
TmpFS=$dir/tmp.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/slurmd.%n
NodeName=n[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=$cpus RealMemory=2000
PartitionName=main Nodes=ALL Default=YES MaxTime=01:00:00 State=UP
END
}

up() {
  local nodes=${1:-3} cpus=${2:-4} node idle
  [[ $nodes =~ ^[1-9][0-9]?$ && $cpus =~ ^[1-9][0-9]?$ ]] || {
    say "up takes numbers of nodes and CPUs, 1 to 99; got $*"
    exit 2
  }
  [ "$(id -u)" = 0 ] || cannot "only root can start a Slurm cluster"
  [ ! -e "$dir" ] || [ -O "$dir" ] || cannot "$dir belongs to somebody else"
  refuse_others
  install_slurm
  refuse_others # an installation may start what it installs
  down
  configure "$nodes" "$cpus"
  munged --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
    --pid-file="$dir/munge/munged.pid" --log-file="$dir/munge/log" \
    --seed-file="$dir/munge/seed" --num-threads=4
  slurmctld -c
  for node in $(seq -f n%g "$nodes"); do
    slurmd -N "$node"
  done
  for _ in $(seq 300); do
    idle=$(sinfo -h -N -o %t 2>/dev/null | grep -c '^idle$' || true)
    if [ "$idle" = "$nodes" ]; then
      say "$nodes nodes are up: export SLURM_CONF=$SLURM_CONF"
      return
    fi
    sleep 0.1
  done
  say "the cluster did not come up within 30 s:"
  tail -n 5 "$dir"/log/* "$dir/munge/log" >&2
  down
  exit 1
}

# End a daemon at once: nothing of its state is wanted, and asked kindly it takes seconds.
stop() {
  local pid
  pid=$(cat "$1" 2>/dev/null) || return 0
  kill -KILL "$pid" 2>/dev/null || true
}

# Processes of the cluster's jobs carry its name; their shepherds and lost daemons its folder.
left_over() {
  local pid
  for pid in $(cd /proc && echo [0-9]*); do
    [ "$pid" != $$ ] || continue
    if grep -qsz "^SLURM_CLUSTER_NAME=$cluster\$" "/proc/$pid/environ" ||
      { grep -qsE '^slurm(d|ctld|stepd)$' "/proc/$pid/comm" &&
        grep -qsz "^SLURM_CONF=$SLURM_CONF\$" "/proc/$pid/environ"; }; then
      echo "$pid"
    fi
  done
}

# Killed MPI ranks leave shared memory: what is younger than the cluster and nobody's goes.
sweep() {
  local file
  find /dev/shm -maxdepth 1 \( -name 'mpich_shm_*' -o -name 'sm_segment.*' \) -user root \
    -newer "$SLURM_CONF" 2>/dev/null | while read -r file; do
    grep -qsF "$file" /proc/[0-9]*/maps || rm -f "$file"
  done
}

down() {
  local file pid
  [ -e "$SLURM_CONF" ] || return 0
  if [ -e "$dir/slurmctld.pid" ] && timeout 5 scancel --user=root 2>/dev/null; then
    for _ in $(seq 50); do
      [ -n "$(timeout 5 squeue -h 2>/dev/null)" ] || break
      sleep 0.1
    done
  fi
  for file in "$dir"/slurmctld.pid "$dir"/slurmd.*.pid; do
    [ ! -e "$file" ] || stop "$file"
  done
  for pid in $(left_over); do
    kill -KILL "$pid" 2>/dev/null || true
  done
  stop "$dir/munge/munged.pid"
  sweep
  # Only what was made here: the folder's name came from outside.
  rm -rf "$SLURM_CONF" "$dir"/{log,state,munge,apt.log} "$dir"/{spool,tmp}.n* "$dir"/*.pid
  rmdir "$dir" 2>/dev/null || true
}

need_cluster() {
  [ -e "$SLURM_CONF" ] || {
    say "there is no cluster in $dir"
    exit 1
  }
}

# What dies with a node: its slurmd, its tasks, and their shepherds, which carry no mark.
of_node() {
  local pid parent
  cat "$dir/slurmd.$1.pid"
  for pid in $(cd /proc && echo [0-9]*); do
    grep -qsz "^SLURM_CLUSTER_NAME=$cluster\$" "/proc/$pid/environ" || continue
    grep -qsz "^SLURMD_NODENAME=$1\$" "/proc/$pid/environ" || continue
    echo "$pid"
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null || true)
    [ "$(cat "/proc/$parent/comm" 2>/dev/null || true)" != slurmstepd ] || echo "$parent"
  done
}

lose() {
  local pid pids segments
  mapfile -t pids < <(of_node "$1" | sort -un)
  # A node's shared memory goes with it.
  mapfile -t segments < <(
    for pid in "${pids[@]}"; do cat "/proc/$pid/maps" 2>/dev/null || true; done |
      grep -oE '/dev/shm/(mpich_shm_|sm_segment\.)[^ ]+' | sort -u
  )
  kill -KILL "${pids[@]}" 2>/dev/null || true # one may just have ended
  [ ${#segments[@]} = 0 ] || rm -f "${segments[@]}"
}

status() {
  timeout 20 sinfo -N && timeout 20 squeue -o '%i %j %T %M %D %r'
}

case ${1:-} in
  up) up "${@:2}" ;;
  down) down ;;
  status) need_cluster && status ;;
  lose) need_cluster && lose "${2:?a node}" ;;
  restore) need_cluster && slurmd -N "${2:?a node}" ;;
  *)
    say "usage: $0 up [NODES [CPUS]] | down | status | lose NODE | restore NODE"
    exit 2
    ;;
esac

#!/usr/bin/env bash
# Fetches what the e2e tests need, each by its ordinary client, and says plainly
# what is missing. Safe to run again: what is there already is left alone.
#
#   e2e/setup.sh redis         a Redis server (Debian's)
#   e2e/setup.sh full          Redis, Kafka's jars, the drivers of all client kinds, older Java clients, kafkajs, kcat;
#   e2e/setup.sh smoke         the same, for check 4 has consumers of all releases in every size of the tests
set -euo pipefail
cd "$(dirname "$0")"
. ./versions

missing=()
need() { # command, what it is for
  command -v "$1" >/dev/null 2>&1 || missing+=("$1 ($2)")
}

debian() { # command, package
  command -v "$1" >/dev/null 2>&1 && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "setup: installing $2"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$2"; } \
      >.work/apt.log 2>&1 </dev/null || tail -5 .work/apt.log
  fi
  need "$1" "Debian package $2; install it, or run this as root"
}

maven() {
  mvn -q -B -Dstyle.color=never "$@" >.work/maven.log 2>&1 </dev/null || { cat .work/maven.log >&2; return 1; }
}

jars() { # Kafka version
  [ -e "kafka/target/$1/.complete" ] && return
  echo "setup: Kafka $1 jars"
  maven -f kafka/pom.xml -Dkafka.version="$1" process-resources
  touch "kafka/target/$1/.complete"
}

java_clients() { # kafka-clients version
  [ -e "java/target/clients/$1/.complete" ] && return
  echo "setup: kafka-clients $1"
  maven -f java/pom.xml -Dkafka.version="$1" process-resources
  touch "java/target/clients/$1/.complete"
}

java_driver() {
  local classes=java/target/classes
  if [ ! -d "$classes" ] || [ -n "$(find java/src java/pom.xml -newer "$classes/.built" 2>/dev/null)" ] || [ ! -e "$classes/.built" ]; then
    echo "setup: Java driver"
    maven -f java/pom.xml compile
    touch "$classes/.built"
  fi
  java_clients "$KAFKA_NEW"
}

python_driver() {
  if [ ! -x python/.venv/bin/python ] || ! cmp -s python/requirements.txt python/.venv/requirements.txt; then
    echo "setup: Python driver"
    python3 -m venv python/.venv
    python/.venv/bin/pip install -q -r python/requirements.txt
    cp python/requirements.txt python/.venv/requirements.txt
  fi
}

node_modules() {
  if [ ! -d node/node_modules/kafkajs ]; then
    echo "setup: kafkajs"
    npm --prefix node install --no-audit --no-fund --silent
  fi
}

report() {
  if [ ${#missing[@]} -gt 0 ]; then
    printf 'setup: missing: %s\n' "${missing[@]}" >&2
    exit 1
  fi
}

mkdir -p .work
case "${1:-smoke}" in
redis)
  debian redis-server redis-server
  report
  ;;
smoke | full)
  need java "a Java 17 runtime"
  need mvn "Maven, for Kafka's jars"
  need python3 "Python 3.9 or newer with venv"
  debian redis-server redis-server
  debian kcat kcat
  need npm "Node.js with npm, for kafkajs"
  report
  jars "$KAFKA_OLD"
  jars "$KAFKA_NEW" # its command-line tools and clients are used with every broker
  java_driver
  python_driver
  node_modules
  for v in $JAVA_CLIENTS; do java_clients "$v"; done
  ;;
*)
  echo "usage: setup.sh redis|smoke|full" >&2
  exit 2
  ;;
esac

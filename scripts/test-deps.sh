#!/usr/bin/env bash
# Installs missing programs that the tests need. On Debian and Ubuntu, as root or with sudo, it
# calls apt-get; elsewhere it prints the packages and fails. Python programs come from PyPI, in
# fixed versions, into the folder .venv.
set -euo pipefail
# Debian installs servers there; the PATH of an ordinary user lacks it.
PATH+=:/usr/local/sbin:/usr/sbin:/sbin
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# command or file : Debian packages that contain it : why a test needs it
needs=(
  'cc     : gcc libc6-dev : SQLite is compiled into the program'
  'curl   : curl          : black-box tests of the HTTP interface'
  'unshare: util-linux    : fault tests: a private disk that can be filled'
  'mount  : mount         : the same'
  'redis-server      : redis-server   : the gate counts units in Redis'
  'redis-sentinel    : redis-sentinel : fail-over of the gate to a new master'
  'redis-benchmark   : redis-tools    : the baseline of the gate'
  'mariadbd          : mariadb-server : the ledger in MySQL or MariaDB'
  'mariadb-install-db: mariadb-server : the same'
  'rabbitmq-server   : rabbitmq-server : RabbitMQ queues orders for the ledger'
  'epmd              : erlang-base     : the same'
  'chromium          : chromium        : the storefront in a browser'
  'chromedriver      : chromium-driver : the same'
  'nginx             : nginx-light     : the proxy of deploy/nginx.conf'
  'systemd-analyze   : systemd         : the unit deploy/floodgate.service'
  'openssl           : openssl         : certificates of test servers'
  'python3           : python3         : the OpenAPI documents are validated and tested'
  '/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc : fonts-noto-cjk : Chinese pages'
)

trim() {
  local text=$1
  text=${text#"${text%%[![:space:]]*}"}
  printf '%s' "${text%"${text##*[![:space:]]}"}"
}

missing=()
packages=()
for need in "${needs[@]}"; do
  IFS=: read -r command debian why <<<"$need"
  command=$(trim "$command")
  [[ -e $command ]] || command -v "$command" >/dev/null && continue
  missing+=("$command ($(trim "$why"))")
  read -ra names <<<"$debian"
  packages+=("${names[@]}")
done
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  missing+=('ensurepip of python3 (the same)')
  packages+=(python3-venv)
fi

install() {
  echo 'test-deps: the tests need programs that this machine lacks:' >&2
  printf '  %s\n' "${missing[@]}" >&2

  as_root=()
  if ((EUID != 0)); then
    as_root=(sudo)
  fi
  if ! command -v apt-get >/dev/null || ! command -v "${as_root[0]:-true}" >/dev/null; then
    echo "test-deps: install them, then run 'make test' again" >&2
    echo "test-deps: names of the Debian packages: ${packages[*]}" >&2
    exit 1
  fi

  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" apt-get install -q -y --no-install-recommends "${packages[@]}"
}
((${#missing[@]} == 0)) || install

# Python programs: installed again when a version changes.
versions=scripts/test-requirements.txt
if ! cmp -s "$versions" .venv/installed; then
  python3 -m venv --clear .venv
  .venv/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement "$versions"
  cp "$versions" .venv/installed
fi

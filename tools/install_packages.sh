# Sourced by ./run and .ci/run. install_packages FILE: what FILE lists (`package  # why`) and this machine lacks is installed by
# apt, with one line that says what and why. Says and does nothing where all is there. Asks nothing.
install_packages() {
  local -a names=() missing=() reasons=()
  local line name state
  while IFS= read -r line; do
    name=${line%%#*}
    name=${name//[[:space:]]/}
    if [[ -n $name ]]; then names+=("$name"); fi
  done <"$1"
  if ! command -v dpkg-query >/dev/null; then
    echo "run: not a Debian system, so these must be there already: ${names[*]}" >&2
    return 0
  fi
  # One call for all; a package that dpkg has never heard of gives no line, and a failure that is no failure here.
  state=$'\n'$(dpkg-query -W -f '${binary:Package} ${db:Status-Status}\n' "${names[@]}" 2>/dev/null | sed 's/:[a-z0-9]* / /' || true)$'\n'
  for name in "${names[@]}"; do
    if [[ $state == *$'\n'"$name installed"$'\n'* ]]; then continue; fi
    missing+=("$name")
    reasons+=("$name ($(sed -n "s/^$name[[:space:]]*#[[:space:]]*//p" "$1"))")
  done
  if ((${#missing[@]} == 0)); then return 0; fi
  local list
  printf -v list '%s, ' "${reasons[@]}"
  echo "run: installing ${list%, }" >&2
  local -a root=(env DEBIAN_FRONTEND=noninteractive)
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "run: neither root nor sudo here; please have installed: apt-get install ${missing[*]}" >&2
      return 1
    fi
    root=(sudo "${root[@]}")
  fi
  local -a apt=("${root[@]}" apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 install "${missing[@]}")
  # The package lists of a fresh machine are empty or old: update once, only when needed.
  if "${apt[@]}" >/dev/null 2>&1 </dev/null; then return 0; fi
  "${root[@]}" apt-get -qq update >&2 </dev/null && "${apt[@]}" >&2 </dev/null && return 0
  echo "run: apt-get could not install: ${missing[*]}" >&2
  return 1
}

# Tab completion of the apps' groups, options and keys, for bash, in the repository's root:
#   source experiments/completion.bash
#   python -m experiments.train opti<Tab>
# Every Tab asks the app itself, which takes as long as its --help.

_arbiter_complete() {
  local pattern='^[[:space:]]*([^[:space:]]+)[[:space:]]+-m[[:space:]]+experiments\.([^[:space:]]*)(.*)$'
  [[ ${COMP_LINE:0:COMP_POINT} =~ $pattern ]] || return
  local python=${BASH_REMATCH[1]} app=${BASH_REMATCH[2]} rest=${BASH_REMATCH[3]} apps found word
  if [[ -z $rest ]]; then
    apps=$(grep -l '^if __name__ == ' experiments/*.py | sed 's|.*/|experiments.|; s|\.py$||')
    mapfile -t COMPREPLY < <(compgen -W "$apps" -- "experiments.$app")
    return
  fi
  word=${rest##*[[:space:]]}
  # Hydra composes what stands before the word; flags and values to sweep over are no part of that.
  local line="app" other
  for other in ${rest%"$word"}; do
    [[ $other == -* || $other == *,* ]] || line+=" $other"
  done
  found=$(COMP_LINE="$line $word" "$python" -m "experiments.$app" -sc query=bash 2>/dev/null)
  mapfile -t COMPREPLY < <(compgen -W "$found" -- "$word")
  # Bash takes what follows the last = for the word to complete.
  if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then
    COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
  fi
}

complete -o nospace -o default -F _arbiter_complete python python3 .venv/bin/python

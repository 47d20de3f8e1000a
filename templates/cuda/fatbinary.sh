#!/bin/sh
# clang calls fatbinary by the options of CUDA 12; the program is that of CUDA 13.
set -- "$@" --
while [ "$1" != -- ]; do
  case $1 in
    -*image=profile=sm_*,*) kind=elf word=${1#*profile=sm_} ;;
    -*image=profile=compute_*,*) kind=ptx word=${1#*profile=compute_} ;;
    *) kind='' word=$1 ;;
  esac
  shift
  set -- "$@" "${kind:+--image3=kind=$kind,sm=}$word"
done
shift
exec "$(dirname "$0")/../libexec/fatbinary" --compress-mode=none "$@"

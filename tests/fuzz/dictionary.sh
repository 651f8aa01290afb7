#!/bin/sh
# Prints the dictionary of a reader: tests/fuzz/READER.dict, and the opcodes of ir/opcodes.def in the form of its line
# "# opcodes: FORM".
#
#     tests/fuzz/dictionary.sh hlo_text
set -e
words=tests/fuzz/$1.dict
cat "$words"
form=$(sed -n 's/^# opcodes: //p' "$words")
sed -n 's/^OPCODE([A-Z0-9_]*, "\([^"]*\)".*/\1/p' ir/opcodes.def | while read -r opcode; do
  printf '%s\n' "$form" | sed "s/NAME/$opcode/"
done

# Device code as a C string: cmake -D SOURCE= -D HEADER= -D NAME= -P embed.cmake
# writes HEADER with `static const char cuda_text_NAME[]`, the text of SOURCE.
file(READ ${SOURCE} text)
string(REPLACE "\\" "\\\\" text "${text}")
string(REPLACE "\"" "\\\"" text "${text}")
string(REPLACE "\n" "\\n\"\n\"" text "${text}")
file(WRITE ${HEADER} "/* From ${NAME}.cu, by the build. */\nstatic const char cuda_text_${NAME}[] =\n\"${text}\";\n")

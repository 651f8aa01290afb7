# The trained pipeline inference agent (datasets/agents/pipeline.safetensors) inside the library: its bytes as an
# array, made again where the file changes.
set(AGENT_FILE ${CMAKE_SOURCE_DIR}/datasets/agents/pipeline.safetensors)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${AGENT_FILE})
file(READ ${AGENT_FILE} AGENT_BYTES HEX)
string(REGEX REPLACE "(................................)" "\\1\n" AGENT_BYTES "${AGENT_BYTES}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," AGENT_BYTES "${AGENT_BYTES}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/automap_agent.h @ONLY CONTENT
  "/* From datasets/agents/pipeline.safetensors, by the build. */\nstatic const unsigned char pipeline_agent[] = {\n@AGENT_BYTES@};\n")
unset(AGENT_BYTES)
